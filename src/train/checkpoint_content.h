#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>

#include "vlmtrain/data/ledger.h"
#include "vlmtrain/engine/optimizer.h"
#include "vlmtrain/io/lazy_tensors.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/models/weights_to_save.h"
#include "vlmtrain/train/run_checkpoint.h"

namespace vlmtrain::train {

/// All that a checkpoint of a run consists of, to be written once (RunCheckpoints::write). A tensor is let go as soon
/// as it is written.
struct CheckpointContent {
  int64_t step = 0;
  std::optional<int64_t> best_step;  ///< as of this step
  models::CheckpointContents model;
  io::LazyTensors optimizer;
  std::string ledger, state;  ///< trainer_state/ledger.json, state.json
};

/// Where the values are that training changes.
enum class ValueStorage {
  kInPlace,  ///< has to be written before the next step
  kCopied,   ///< in the host's memory, for another thread while training goes on
};

/// Weights are saved as the base has them (models/weights_to_save.h), `dtype` as SaveOptions::dtype. What is lost by
/// that of the fp32 values of trained weights is kept in trainer_state, so that the run goes on with the same bits.
/// kCopied: takes compute_copy_bytes() of the host's memory, and throws what LibTorch throws where it does not get
/// them.
CheckpointContent make_checkpoint_content(const RunState& state, const models::VisionLanguageModel& model,
                                          const engine::AdamW& optimizer, const data::Ledger& ledger,
                                          const models::BaseWeights& base, std::optional<at::ScalarType> dtype,
                                          ValueStorage values);

/// Of the values that training changes: each once, however often it is written.
int64_t compute_copy_bytes(const engine::AdamW& optimizer);

/// That writing takes beside them, at most: one tensor in the type that it is saved in.
int64_t compute_write_buffer_bytes(const models::VisionLanguageModel& model);

}  // namespace vlmtrain::train
