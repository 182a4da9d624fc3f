#include "models/processing/processor_config.h"

#include <fmt/format.h>

#include <mutex>
#include <set>

#include "models/processing/preprocessor_config.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {

void check_image_tokens(const std::filesystem::path& folder, const std::string& key, int64_t features) {
  const auto path = folder / "processor_config.json";
  if (!std::filesystem::exists(path)) return;
  const auto tokens = io::get_or<int64_t>(io::read_json(path), key, features, path.string());
  if (tokens == features) return;
  throw data_error("{}: {} is {}, but the model of config.json gives {} features of an image; make them equal",
                   path.string(), key, tokens, features);
}

void warn_if_frame_rate_differs(const std::filesystem::path& folder, double fps) {
  static std::mutex mutex;
  static std::set<std::string> reported;
  if (fps != ProcessorSettings().video_fps) return;
  const auto file = PreprocessorConfig::find_for_videos(folder);
  if (!file || file->find("fps") == nullptr || file->find("num_frames") != nullptr) return;
  const auto file_fps = file->value<double>("fps", fps);
  const std::lock_guard lock(mutex);
  if (file_fps == fps || !reported.insert(file->name()).second) return;
  spdlog::warn(
      "{}: fps is {}, and videos are sampled at data.video_fps, {} frames a second; set data.video_fps={} for "
      "the file's",
      file->name(), file_fps, fps, file_fps);
}

}  // namespace vlmtrain::models
