#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace vlmtrain::app {

/// The flags of `vlmtrain plan` that describe samples, instead of a data set.
struct SampleFlags {
  std::optional<int64_t> images;
  std::string image_size;
  std::string mix;
  std::optional<int64_t> volumes;
  std::string volume_size;
  std::optional<int64_t> video_frames;
  std::optional<double> fps;
  std::string video_size;
  std::optional<int64_t> masks;
  std::optional<int64_t> text_tokens;
  std::optional<int64_t> answer_tokens;

  /// Whether any was given.
  bool has_any() const {
    return images || volumes || masks || text_tokens || answer_tokens || video_frames || fps || !image_size.empty() ||
           !mix.empty() || !video_size.empty() || !volume_size.empty();
  }
};

/// Binds the flags to `arguments`, which must outlive the command. Of a flag that stands twice the last one counts.
void declare_sample_flags(CLI::App& command, SampleFlags& arguments);

}  // namespace vlmtrain::app
