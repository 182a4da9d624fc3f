#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "models/media/media_reader.h"
#include "models/media/medium.h"
#include "vlmtrain/data/volume_options.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::models {

/// The media of a record, in the order of their placeholders in the rendered chat.
using MediaList = std::vector<std::unique_ptr<Medium>>;

/// Opens the media of records with the readers of a family. Thread-safe. All functions throw
/// data::SampleError, which names the record.
class MediaOpener {
 public:
  /// `max_images` is data.max_images_per_sample; nullopt: no limit.
  MediaOpener(MediaReaders readers, data::VolumeOptions volume_settings, std::optional<int64_t> max_images)
      : readers_(std::move(readers)), volume_settings_(std::move(volume_settings)), max_images_(max_images) {}

  /// Throws for media that the family or the settings do not allow.
  void check_supported_media(const io::Record& record) const;

  /// Returns `turns`, those of the record, with a placeholder for each slice of a volume that is used
  /// as images.
  std::vector<text::Turn> expand_slice_placeholders(const io::Record& record, std::vector<text::Turn> turns) const;

  /// Opens the media of a rendered chat and reads their headers. The record must outlive the
  /// result. `template_name` is for messages. Throws for media that the chat lacks or that cannot
  /// be read. REQUIRES: check_supported_media() has returned.
  MediaList open(const io::Record& record, const text::RenderedChat& chat, std::string_view template_name) const;

 private:
  /// A medium to be opened.
  struct MediumSource {
    const io::MediaRef* file;
    data::MediaKind kind;
    std::optional<size_t> slice{};  ///< index of the slice of a volume that is used as images
  };

  bool uses_volume_slices() const { return volume_settings_.input_form == data::VolumeInputForm::kSlices; }
  /// Throws for any media. For models without a vision tower.
  static void reject_media(const io::Record& record);
  void check_volumes(const io::Record& record) const;
  void check_num_images(const io::Record& record, const std::vector<int64_t>& images_per_placeholder) const;
  /// Returns the number of images that each image placeholder stands for: 1, or the number of
  /// slices of a volume.
  std::vector<int64_t> count_images_per_placeholder(const io::Record& record) const;
  /// Assigns the record's files to the chat's placeholders.
  std::vector<MediumSource> find_sources(const io::Record& record, const text::RenderedChat& chat,
                                         std::string_view template_name) const;

  MediaReaders readers_;
  data::VolumeOptions volume_settings_;
  std::optional<int64_t> max_images_;
};

}  // namespace vlmtrain::models
