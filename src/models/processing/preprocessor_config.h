#pragma once

#include <nlohmann/json.hpp>

#include <array>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "models/checkpoints/config_checks.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/image/resize.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {

/// The settings of a checkpoint's image or video processor, usually the content of
/// preprocessor_config.json. Methods throw UserError (kBadData), which names file and key, for
/// values of the wrong type. Immutable.
class PreprocessorConfig {
 public:
  using ChannelValues = std::array<double, 3>;  ///< one value per channel

  /// Wraps the file's content. `name` is the file's name in errors.
  PreprocessorConfig(nlohmann::json config, std::string name);

  /// Returns the image processor's settings in the search order of transformers 5.24: section
  /// image_processor of processor_config.json, then preprocessor_config.json; nothing if neither
  /// exists. Warns once about conflicting copies.
  static std::optional<PreprocessorConfig> find_for_images(const std::filesystem::path& folder);

  /// Returns the video processor's settings in the search order of transformers: section
  /// video_processor of processor_config.json, then video_preprocessor_config.json, then the
  /// settings of find_for_images(); nothing if none exists.
  static std::optional<PreprocessorConfig> find_for_videos(const std::filesystem::path& folder);

  /// Returns whether `key` exists and is null, which disables a default.
  bool is_null(std::string_view key) const;

  /// Returns the value of `key`; null if it is absent or null.
  const nlohmann::json* find(std::string_view key) const;

  /// Returns the value of `key`; `fallback` if it is absent or null.
  template <class T>
  T value(std::string_view key, T fallback) const {
    const nlohmann::json* it = find(key);
    if (it == nullptr) return fallback;
    // nlohmann::json silently converts fractions and numbers beyond 63 bits to integers.
    bool has_requested_type = !std::integral<T> || std::same_as<T, bool> || it->is_number_integer();
    // It also converts a list with too many numbers to an array without an error.
    if constexpr (std::same_as<T, ChannelValues>)
      has_requested_type = it->is_array() && it->size() == std::tuple_size_v<ChannelValues>;
    try {
      if (has_requested_type) return it->get<T>();
    } catch (const nlohmann::json::exception&) {
    }
    throw config_error("{}: {} is {}, which has the wrong type", name_, key, io::make_json_excerpt(*it));
  }

  /// Returns `image_processor_type` (formerly `feature_extractor_type`) without a "Fast" suffix;
  /// `fallback` if absent. Throws UserError (kBadData) if it is not in `allowed`.
  std::string get_processor_type(std::string_view fallback, const std::vector<std::string_view>& allowed) const;

  /// Returns the filter that `resample` selects by Pillow's number: 1 Lanczos, 2 bilinear, 3
  /// bicubic. `fallback` is the number if it is absent.
  image::ResampleFilter get_resample_filter(int64_t fallback) const;

  /// Returns image_mean, image_std and rescale_factor, with the defaults `mean`, `std` and 1/255.
  /// Throws for implausible values.
  image::Normalization get_normalization(const ChannelValues& mean, const ChannelValues& std) const;

  /// Throws UserError (kBadData) if `key` is false.
  void check_key_is_true(std::string_view key) const;
  /// Throws UserError (kBadData) if `key` is present and not `expected`, the value of config.json's
  /// `section`.
  void check_equals_config(std::string_view key, int64_t expected, std::string_view section) const;
  /// Throws UserError (kBadData) if a key that is not in `allowed` has another value than null or
  /// false.
  void reject_other_keys(const std::set<std::string_view>& allowed) const;

  const std::string& name() const { return name_; }
  const nlohmann::json& json() const { return config_; }

 private:
  nlohmann::json config_;
  std::string name_;
};

/// image_mean and image_std of OpenAI's CLIP.
inline constexpr PreprocessorConfig::ChannelValues kClipMean{0.48145466, 0.4578275, 0.40821073};
inline constexpr PreprocessorConfig::ChannelValues kClipStd{0.26862954, 0.26130258, 0.27577711};

/// Returns the error (kBadData) of a checkpoint in `folder` without settings of an image processor.
UserError make_missing_image_config_error(const std::filesystem::path& folder);

/// Throws UserError (kBadData) if the number of image tokens under `key` of
/// `folder`/processor_config.json differs from `features`, the model's number of features per
/// image. Does nothing if the file or the key is missing.
void check_num_image_tokens(const std::filesystem::path& folder, const std::string& key, int64_t features);

/// Warns, once per file and process, if the video processor's `fps` in `folder` differs from `fps`,
/// the value of data.video_fps. Does nothing if `fps` is not the default, since the user has chosen
/// it. Thread-safe.
void warn_if_frame_rate_differs(const std::filesystem::path& folder, double fps);

/// The changes to a family's processor files for a model that was trained with other settings.
struct ProcessorOverrides {
  using EditFunction = std::function<void(nlohmann::ordered_json& settings)>;

  EditFunction edit_image_settings = {};  ///< edits each copy of the image processor's settings; empty: no change
  EditFunction edit_video_settings = {};  ///< edits each copy of the video processor's settings; empty: no change
  /// Whether `edit_video_settings` is applied even if the folder has no file for videos. The video
  /// settings are then copied from the image processor's file to a file of their own.
  bool creates_video_config = false;
  std::string video_processor_type = {};           ///< class of transformers, written to that file
  std::vector<std::string> unsaved_settings = {};  ///< as ProcessorFiles::unsaved_settings
};

/// Returns whether `settings` sample videos as by default.
inline bool has_default_video_sampling(const ProcessorSettings& settings) {
  const ProcessorSettings defaults;
  return settings.video_fps == defaults.video_fps && settings.video_max_frames == defaults.video_max_frames;
}

/// The media that a processor's settings are for.
enum class MediaRole { kImages, kVideos };

/// A copy of the settings of an image or video processor in a checkpoint.
struct ProcessorSettingsCopy {
  std::string file;     ///< name in the folder: "processor_config.json"
  std::string section;  ///< "image_processor"; empty: the whole file
  std::string name;     ///< name in messages
  nlohmann::json settings;
};

/// Returns the copies in `folder`, the effective one first, in the order of transformers 5.24
/// (image_processing_base.py, video_processing_utils.py). For images: the section image_processor
/// of processor_config.json, then preprocessor_config.json. For videos: the section
/// video_processor, then video_preprocessor_config.json, and without both preprocessor_config.json.
/// Null sections are skipped. Does not check that settings are objects. Throws UserError (kBadData)
/// for a file that is not JSON.
std::vector<ProcessorSettingsCopy> find_settings_copies(const std::filesystem::path& folder, MediaRole role);

/// Returns the keys that both copies have with different values. Ignores class names, and sizes
/// given by different keys.
std::vector<std::string> find_differing_keys(const nlohmann::json& a, const nlohmann::json& b);

/// Warns, once per copy and process, about copies that differ from the first. Thread-safe.
/// REQUIRES: at least one copy.
void warn_about_conflicting_copies(const std::vector<ProcessorSettingsCopy>& copies);

}  // namespace vlmtrain::models
