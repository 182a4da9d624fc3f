#pragma once

namespace vlmtrain::data {

/// How videos are put into the token stream where the code that runs a family's checkpoints does not agree.
enum class VideoLayout {
  kReleased,       ///< as the code that the checkpoints were released with, and vLLM
  kTransformers5,  ///< as transformers from 5.3 on
};

}  // namespace vlmtrain::data
