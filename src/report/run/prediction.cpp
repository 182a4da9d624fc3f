#include "vlmtrain/report/prediction.h"

#include <algorithm>
#include <cmath>

#include "report/format/html.h"
#include "vlmtrain/base/base64.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/image/overlay.h"
#include "vlmtrain/image/resize.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/image/volume.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/report/json_lines.h"

namespace vlmtrain::report {

namespace {

/// JPEG quality of thumbnails, whose details are not examined. Not tuned.
constexpr int kThumbnailJpegQuality = 85;
/// JPEG quality of overlays, so that contours of one pixel stay visible. Not tuned.
constexpr int kOverlayJpegQuality = 92;

/// Returns the size, scaled down so that the longest side has at most `max_side` pixels.
image::ImageSize limit_image_size(image::ImageSize size, int64_t max_side) {
  const int64_t longest_side = std::max(size.height, size.width);
  if (longest_side <= max_side) return size;
  const auto scale_side = [&](int64_t side) {
    return std::max<int64_t>(1, std::llround(static_cast<double>(side * max_side) / static_cast<double>(longest_side)));
  };
  return {.height = scale_side(size.height), .width = scale_side(size.width)};
}

at::Tensor shrink_image(const at::Tensor& image, image::ImageSize size) {
  if (image.size(1) == size.height && image.size(2) == size.width) return image;
  return image::resize_image(image, size.height, size.width, image::ResampleFilter::kBilinear);
}

std::string make_jpeg_data_uri(const at::Tensor& image, int quality) {
  return "data:image/jpeg;base64," + base64_encode(image::encode_jpeg(image, quality));
}

}  // namespace

std::string Prediction::to_json_line() const {
  nlohmann::ordered_json json{{"step", step},
                              {"id", id},
                              {"task", task},
                              {"question", question},
                              {"expected", expected_answer},
                              {"answer", answer},
                              {"images", thumbnail_uris}};
  io::add_field_aliases(json, {{"answer", "given"}});
  if (!volume_captions.empty()) json["captions"] = volume_captions;
  for (const auto& mask : masks) {
    json["masks"].push_back({{"structure", mask.structure}, {"dice", mask.dice}, {"overlay", mask.overlay_uri}});
  }
  if (boxes) json["boxes"] = {{"iou", boxes->iou}, {"overlay", boxes->overlay_uri}};
  return io::to_json_string(json);
}

std::string make_thumbnail_uri(const at::Tensor& image) {
  return make_jpeg_data_uri(shrink_image(image, limit_image_size({image.size(1), image.size(2)}, kMaxThumbnailSide)),
                            kThumbnailJpegQuality);
}

std::string make_thumbnail_uri(const io::MediaRef& image) {
  if (image.is_volume)
    return make_jpeg_data_uri(image::render_scan_slices(image, kMaxThumbnailSide), kThumbnailJpegQuality);
  return make_thumbnail_uri(image::decode_image(image));
}

std::string make_overlay_uri(const at::Tensor& image, const at::Tensor& predicted, const at::Tensor& truth) {
  const image::ImageSize size = limit_image_size({image.size(1), image.size(2)}, kMaxOverlaySide);
  const auto resize = [&](const at::Tensor& mask) { return image::resize_mask(mask, size.height, size.width); };
  return make_jpeg_data_uri(
      image::draw_mask_comparison(shrink_image(image, size), {resize(predicted)}, {resize(truth)}),
      kOverlayJpegQuality);
}

std::string make_box_overlay_uri(const at::Tensor& image, const std::vector<image::Box>& predicted,
                                 const std::vector<image::Box>& truth) {
  const image::ImageSize size = limit_image_size({image.size(1), image.size(2)}, kMaxOverlaySide);
  const double scale_x = static_cast<double>(size.width) / static_cast<double>(image.size(2));
  const double scale_y = static_cast<double>(size.height) / static_cast<double>(image.size(1));
  std::vector<image::OverlayBox> overlays;
  const auto add = [&](const std::vector<image::Box>& boxes, const std::array<uint8_t, 3>& color) {
    for (const auto& [first, last] : boxes) {
      overlays.push_back({.box = {.top_left = {.x = first.x * scale_x, .y = first.y * scale_y},
                                  .bottom_right = {.x = last.x * scale_x, .y = last.y * scale_y}},
                          .color = color});
    }
  };
  add(truth, image::kTrueBoxColor);
  add(predicted, image::kPredictedBoxColor);
  return make_jpeg_data_uri(image::draw_boxes(shrink_image(image, size), overlays), kOverlayJpegQuality);
}

}  // namespace vlmtrain::report
