#include "models/media/medium.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "models/media/media_opener.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/image/volume.h"
#include "vlmtrain/models/media_preview.h"

namespace vlmtrain::models {

namespace {

/// Returns a preview of each row of `rows` [rows, 3, height, width].
std::vector<MediaPreview> preview_rows(const at::Tensor& rows) {
  std::vector<MediaPreview> previews;
  previews.reserve(static_cast<size_t>(rows.size(0)));
  for (int64_t row = 0; row < rows.size(0); ++row) {
    previews.push_back({.pixels = rows.select(0, row), .tile_height = rows.size(2), .tile_width = rows.size(3)});
  }
  return previews;
}

/// Returns the result of `function`. Its UserErrors get the path of `medium` as prefix, unless the
/// message contains the path.
template <class Function>
auto add_path_to_errors(const io::MediaRef& medium, const Function& function) {
  try {
    return function();
  } catch (const UserError& error) {
    const std::string message = error.what();
    const auto is_mentioned = [&](const io::MediaRef& candidate) {
      return message.find(candidate.path) != std::string::npos;
    };
    const bool is_file_mentioned = is_mentioned(medium) || std::ranges::any_of(medium.frames, is_mentioned);
    throw data_error("{}{}", is_file_mentioned ? "" : medium.path + ": ", message);
  }
}

/// Returns `bytes`, the memory for reading a volume. Throws UserError (kBadData) beyond the same limit.
int64_t check_volume_bytes(const image::VolumeInfo& info, int64_t bytes) {
  if (bytes <= compute_max_sample_bytes(get_host_limit_bytes())) return bytes;
  throw data_error(
      "reading a volume of {} x {} x {} voxels takes {}, beyond the limit of a quarter of the available {}; resample "
      "the file",
      info.size[0], info.size[1], info.size[2], format_bytes(bytes), format_bytes(get_host_limit_bytes()));
}

/// An image or a slice, which is converted as an image.
class StillMedium : public Medium {
 public:
  std::optional<int64_t> count_tokens(const PixelLimits& limits) const final {
    return reader_.count_tokens(size_, limits.image);
  }
  std::optional<ShrinkRange> get_shrink_range() const final { return reader_.get_shrink_range(); }
  std::optional<image::ImageSize> image_size() const final { return size_; }
  std::optional<ImageView> compute_view(const PixelLimits& limits) const final {
    return reader_.compute_view(size_, limits.image);
  }
  at::Tensor preprocess(const PixelLimits& limits, const image::Augmentation& augmentation, at::Tensor& image,
                        std::vector<io::Notice>& notices) final {
    image = image::augment_image(decode(notices), augmentation);
    return reader_.preprocess(image, limits.image);
  }
  std::vector<MediaPreview> preview(const at::Tensor& rows, const MediaLayout& layout,
                                    const PixelLimits& limits) const final {
    return reader_.preview(rows, layout, size_, limits.image);
  }

 protected:
  StillMedium(const io::MediaRef& file, image::ImageSize size, const ImageReader& reader)
      : Medium(file, data::MediaKind::kImage), size_(size), reader_(reader) {}

 private:
  MediaLayout compute_layout(const PixelLimits& limits) const final { return reader_.lay_out(size_, limits.image); }
  /// Returns the image, uint8 [3, height, width].
  virtual at::Tensor decode(std::vector<io::Notice>& notices) = 0;

  image::ImageSize size_;
  const ImageReader& reader_;
};

class ImageMedium final : public StillMedium {
 public:
  ImageMedium(const io::MediaRef& file, const ImageReader& reader)
      : ImageMedium(file, image::read_image_info(file), reader) {}

  std::optional<io::Notice> find_omitted_parts(const MediaLayout& /*layout*/) const override {
    if (num_pages_ == 1) return std::nullopt;
    return io::Notice{.kind = "a TIFF with several pages, of which only the first is used",
                      .example = fmt::format("{} ({} pages)", file().path, num_pages_)};
  }

 private:
  ImageMedium(const io::MediaRef& file, const image::ImageInfo& info, const ImageReader& reader)
      : StillMedium(file, info.size, reader), num_pages_(info.num_pages) {
    const image::ImageSize size = *image_size();
    reader.check_size(size);
    set_decode_bytes(check_decode_bytes(size, kind(), get_host_limit_bytes()));
  }

  at::Tensor decode(std::vector<io::Notice>& notices) override {
    at::Tensor image = image::decode_image(file());
    add_notice(check_image_pixels(image, file().path), notices);
    return image;
  }

  int64_t num_pages_;
};

class SliceMedium final : public StillMedium {
 public:
  SliceMedium(std::shared_ptr<SlicedVolume> volume, size_t index, const ImageReader& reader)
      : StillMedium(volume->file(), volume->slice_size(), reader), volume_(std::move(volume)), index_(index) {
    set_decode_bytes(volume_->decode_bytes());
  }

 private:
  at::Tensor decode(std::vector<io::Notice>& notices) override {
    // Releases the slices when the last of them is decoded.
    return std::exchange(volume_, nullptr)->read_slice(index_, notices);
  }

  std::shared_ptr<SlicedVolume> volume_;
  size_t index_;
};

class VideoMedium final : public Medium {
 public:
  VideoMedium(const io::MediaRef& file, const VideoReader& reader)
      : Medium(file, data::MediaKind::kVideo), reader_(reader), video_(file), info_(video_->info()) {
    reader.check(info_);
    set_decode_bytes(check_decode_bytes(info_.size, kind(), get_host_limit_bytes()));
  }

  std::optional<int64_t> count_tokens(const PixelLimits& limits) const override {
    return reader_.count_tokens(info_, limits.frame);
  }
  std::optional<ShrinkRange> get_shrink_range() const override { return reader_.get_shrink_range(); }
  at::Tensor preprocess(const PixelLimits& limits, const image::Augmentation& /*augmentation*/, at::Tensor& /*image*/,
                        std::vector<io::Notice>& /*notices*/) override {
    at::Tensor rows = reader_.preprocess(*video_, limits.frame);
    video_.reset();
    return rows;
  }
  std::vector<MediaPreview> preview(const at::Tensor& rows, const MediaLayout& layout,
                                    const PixelLimits& /*limits*/) const override {
    return reader_.preview(rows, layout);
  }
  std::optional<io::Notice> find_omitted_parts(const MediaLayout& layout) const override {
    const bool has_preselected_frames = info_.is_frame_list || info_.is_frame_folder;
    if (!has_preselected_frames || layout.frames >= info_.num_frames) return std::nullopt;
    return io::Notice{
        .kind = fmt::format("a list or folder of frames, not all of which are used ({} and the checkpoint's limits)",
                            keys::data::kVideoMaxFrames),
        .example = fmt::format("{} of {} frames, the first in {}", layout.frames, info_.num_frames, file().path)};
  }

 private:
  MediaLayout compute_layout(const PixelLimits& limits) const override { return reader_.lay_out(info_, limits.frame); }

  const VideoReader& reader_;
  std::optional<image::VideoFile> video_;  // opened once; closed after its frames are read
  image::VideoInfo info_;
};

class VolumeMedium final : public Medium {
 public:
  VolumeMedium(const io::MediaRef& file, const VolumeReader& reader, const data::VolumeOptions& settings)
      : Medium(file, data::MediaKind::kVolume), reader_(reader), info_(image::read_volume_info(file)) {
    if (info_.num_frames > 1 && settings.time_series_mode == image::TimeSeriesMode::kRejected) {
      throw data_error(
          "a series of {} volumes (functional or diffusion MRI), but one is expected; set {}=mean, or {}=frames to use "
          "several, or save the volume you need as a separate file",
          info_.num_frames, keys::data::kVolumeSeries, keys::data::kVolumeSeries);
    }
    set_decode_bytes(check_volume_bytes(info_, reader.lay_out(info_, file.modality).decode_bytes));
  }

  std::optional<int64_t> count_tokens(const PixelLimits& /*limits*/) const override { return std::nullopt; }
  std::optional<ShrinkRange> get_shrink_range() const override { return std::nullopt; }
  at::Tensor preprocess(const PixelLimits& /*limits*/, const image::Augmentation& /*augmentation*/,
                        at::Tensor& /*image*/, std::vector<io::Notice>& notices) override {
    at::Tensor volumes = reader_.preprocess(file());
    for (int64_t i = 0; i < volumes.size(0); ++i) {
      add_notice(check_scan_values(volumes[i].contiguous(), file().path), notices);
    }
    return volumes;
  }
  std::vector<MediaPreview> preview(const at::Tensor& rows, const MediaLayout& /*layout*/,
                                    const PixelLimits& /*limits*/) const override {
    std::vector<MediaPreview> previews;
    previews.reserve(static_cast<size_t>(rows.size(0)));
    for (int64_t row = 0; row < rows.size(0); ++row) {
      const at::Tensor slices = image::render_orthogonal_slices(rows.select(0, row));
      previews.push_back({.pixels = slices,
                          .frame_index = row,
                          .tile_height = slices.size(1),
                          .tile_width = slices.size(2),
                          .volume_size = {rows.size(2), rows.size(3), rows.size(4)}});
    }
    return previews;
  }

 private:
  MediaLayout compute_layout(const PixelLimits& /*limits*/) const override {
    return reader_.lay_out(info_, file().modality);
  }

  const VolumeReader& reader_;
  image::VolumeInfo info_;
};

}  // namespace

std::vector<MediaPreview> ImageReader::preview(const at::Tensor& rows, const MediaLayout& /*layout*/,
                                               image::ImageSize /*size*/, std::optional<int64_t> /*max_pixels*/) const {
  return preview_rows(rows);
}

std::vector<MediaPreview> VideoReader::preview(const at::Tensor& rows, const MediaLayout& /*layout*/) const {
  std::vector<MediaPreview> previews = preview_rows(rows);
  for (size_t i = 0; i < previews.size(); ++i) previews[i].frame_index = static_cast<int64_t>(i);
  return previews;
}

void split_tiles(const at::Tensor& image, int64_t tile_size, const at::Tensor& cells) {
  const int64_t rows = image.size(1) / tile_size, columns = image.size(2) / tile_size;
  // [3, row, y, column, x] → [row, column, 3, y, x]
  cells.view({rows, columns, 3, tile_size, tile_size})
      .copy_(image.view({3, rows, tile_size, columns, tile_size}).permute({1, 3, 0, 2, 4}));
}

MediaPreview make_tiled_preview(const at::Tensor& cells, int64_t rows, int64_t columns) {
  const int64_t height = cells.size(2), width = cells.size(3);
  const at::Tensor tiled_image = cells.view({rows, columns, 3, height, width})
                                     .permute({2, 0, 3, 1, 4})
                                     .reshape({3, rows * height, columns * width});
  return {.pixels = tiled_image, .tile_height = height, .tile_width = width};
}

MediaPreview make_overview_preview(const at::Tensor& tile) {
  return {.pixels = tile, .tile_height = tile.size(1), .tile_width = tile.size(2), .is_overview = true};
}

std::vector<MediaPreview> preview_cells_and_overview(const at::Tensor& tiles, int64_t rows, int64_t columns) {
  const int64_t num_cells = rows * columns;
  return {make_tiled_preview(tiles.narrow(0, 0, num_cells), rows, columns),
          make_overview_preview(tiles.select(0, num_cells))};
}

std::optional<std::vector<int64_t>> list_preselected_frames(const image::VideoInfo& video, int64_t max_frames) {
  if (!video.is_frame_list || video.num_frames > max_frames) return std::nullopt;
  std::vector<int64_t> all(static_cast<size_t>(video.num_frames));
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}

void check_frame_normalization(const image::Normalization& images, const image::Normalization& frames) {
  if (images == frames) return;
  throw data_error(
      "image_mean, image_std or rescale_factor of videos and images differ; make them equal in the checkpoint's "
      "processor files, or train only on images");
}

MediaLayout Medium::lay_out(const PixelLimits& limits) const {
  MediaLayout layout = add_path_to_errors(file_, [&] { return compute_layout(limits); });
  layout.kind = kind_;
  layout.decode_bytes = decode_bytes_;
  return layout;
}

SlicedVolume::SlicedVolume(const io::MediaRef& file, const image::SliceSettings& settings, const ImageReader& reader)
    : file_(file), settings_(settings) {
  const image::VolumeInfo info = image::read_volume_info(file);
  slice_size_ = image::compute_slice_size(info, settings);
  reader.check_size(slice_size_);
  decode_bytes_ = check_volume_bytes(info, image::estimate_slice_reading_memory(info, settings));
}

at::Tensor SlicedVolume::read_slice(size_t index, std::vector<io::Notice>& notices) {
  if (slices_.empty()) {
    slices_ = image::read_slices(file_, settings_);
    // Slices outside the body are black, so only a scan with a single color in all slices is
    // reported.
    add_notice(check_volume_slices(slices_, file_.path), notices);
  }
  if (index >= slices_.size())
    throw data_error("has fewer slices than when its header was read; do not change data during a run");
  return slices_[index];
}

std::unique_ptr<Medium> open_image(const io::MediaRef& file, const ImageReader& reader) {
  return add_path_to_errors(file, [&] { return std::make_unique<ImageMedium>(file, reader); });
}

std::unique_ptr<Medium> open_video(const io::MediaRef& file, const VideoReader& reader) {
  return add_path_to_errors(file, [&] { return std::make_unique<VideoMedium>(file, reader); });
}

std::unique_ptr<Medium> open_volume(const io::MediaRef& file, const VolumeReader& reader,
                                    const data::VolumeOptions& settings) {
  return add_path_to_errors(file, [&] { return std::make_unique<VolumeMedium>(file, reader, settings); });
}

std::shared_ptr<SlicedVolume> open_sliced_volume(const io::MediaRef& file, const data::VolumeOptions& settings,
                                                 const ImageReader& reader) {
  return add_path_to_errors(
      file, [&] { return std::make_shared<SlicedVolume>(file, settings.make_slice_settings(), reader); });
}

std::unique_ptr<Medium> make_slice_medium(std::shared_ptr<SlicedVolume> volume, size_t index,
                                          const ImageReader& reader) {
  return std::make_unique<SliceMedium>(std::move(volume), index, reader);
}

}  // namespace vlmtrain::models
