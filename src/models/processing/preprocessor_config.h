#pragma once

#include <nlohmann/json.hpp>

#include <array>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/image/resize.h"
#include "vlmtrain/io/json_text.h"

namespace vlmtrain::models {

/// Values of a checkpoint's preprocessor_config.json, with errors (kBadData) that name file and key.
class PreprocessorConfig {
 public:
  using ChannelValues = std::array<double, 3>;  ///< of each channel

  /// `name` is what an error calls the file.
  PreprocessorConfig(nlohmann::json config, std::string name);

  /// What is said of images, as transformers 5.24 looks for it: section image_processor of processor_config.json, else
  /// preprocessor_config.json. Nothing where there is neither. A file next to it that says something else is reported
  /// once.
  static std::optional<PreprocessorConfig> find_for_images(const std::filesystem::path& folder);

  /// What is said of videos: section video_processor of processor_config.json, else video_preprocessor_config.json,
  /// else the images' file, as transformers looks for it. Nothing where there is none of them.
  static std::optional<PreprocessorConfig> find_for_videos(const std::filesystem::path& folder);

  /// Whether `key` is there and null, which takes a default away.
  bool is_null(std::string_view key) const;

  /// Null where `key` is absent or null.
  const nlohmann::json* find(std::string_view key) const;

  template <class T>
  T value(std::string_view key, T fallback) const {
    const nlohmann::json* it = find(key);
    if (it == nullptr) return fallback;
    // The library makes a whole number of a fraction and of what is beyond 63 bits.
    bool has_type = !std::integral<T> || std::same_as<T, bool> || it->is_number_integer();
    // And takes a longer list for a shorter one.
    if constexpr (std::same_as<T, ChannelValues>)
      has_type = it->is_array() && it->size() == std::tuple_size_v<ChannelValues>;
    try {
      if (has_type) return it->get<T>();
    } catch (const nlohmann::json::exception&) {
    }
    throw data_error("{}: {} is {}, which is not of its type; take the checkpoint's own file", name_, key,
                     io::make_json_excerpt(*it));
  }

  /// `image_processor_type`, without the "Fast" at its end; `fallback` where there is none. One of `allowed`.
  std::string type(std::string_view fallback, const std::vector<std::string_view>& allowed) const;

  /// `resample`, one of Pillow's numbers.
  image::Filter filter(int64_t fallback) const;

  image::Normalization normalization(const ChannelValues& mean, const ChannelValues& std) const;

  void require_true(std::string_view key) const;
  /// What is neither read nor known to leave pixels alone must be off.
  void require_only(const std::set<std::string_view>& allowed) const;

  const std::string& name() const { return name_; }
  const nlohmann::json& json() const { return config_; }

 private:
  nlohmann::json config_;
  std::string name_;
};

/// image_mean and image_std of OpenAI's CLIP.
inline constexpr PreprocessorConfig::ChannelValues kClipMean{0.48145466, 0.4578275, 0.40821073};
inline constexpr PreprocessorConfig::ChannelValues kClipStd{0.26862954, 0.26130258, 0.27577711};

/// Throws UserError (kBadData) where `key` of `folder`/processor_config.json, by which transformers writes the tokens
/// of an image, is another number than the model of config.json has features (`features`) of it. Without file or key
/// there is nothing to compare.
void check_image_tokens(const std::filesystem::path& folder, const std::string& key, int64_t features);

/// Warns, once per file, where the processor file of videos has an `fps` other than `fps`, which is used:
/// data.video_fps with its default value, so that the user may not know. Another one is somebody's choice.
void warn_if_frame_rate_differs(const std::filesystem::path& folder, double fps);

}  // namespace vlmtrain::models
