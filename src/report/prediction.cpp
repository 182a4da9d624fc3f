#include "vlmtrain/report/prediction.h"

#include <algorithm>
#include <cmath>

#include "report/base64.h"
#include "report/json_line.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/decode.h"
#include "vlmtrain/image/encode.h"
#include "vlmtrain/image/overlay.h"
#include "vlmtrain/image/resize.h"
#include "vlmtrain/image/resize_mask.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/image/volume_view.h"
#include "vlmtrain/io/json_text.h"

namespace vlmtrain::report {

namespace {

constexpr int kJpegQuality = 85;
/// Of overlays: a contour of one pixel stays one.
constexpr int kOverlayQuality = 92;

/// Of a picture whose longest side is to have `most` pixels; a smaller one stays as it is.
image::ImageSize bounded(image::ImageSize size, int64_t most) {
  const int64_t longest = std::max(size.height, size.width);
  if (longest <= most) return size;
  const auto scaled = [&](int64_t side) {
    return std::max<int64_t>(1, std::llround(static_cast<double>(side * most) / static_cast<double>(longest)));
  };
  return {.height = scaled(size.height), .width = scaled(size.width)};
}

at::Tensor shrunk(const at::Tensor& picture, image::ImageSize size) {
  if (picture.size(1) == size.height && picture.size(2) == size.width) return picture;
  return image::resize(picture, size.height, size.width, image::Filter::kBilinear);
}

std::string data_uri(const at::Tensor& picture, int quality) {
  return "data:image/jpeg;base64," + base64(image::encode_jpeg(picture, quality));
}

}  // namespace

std::string Prediction::to_json_line() const {
  nlohmann::ordered_json json{{"step", step},         {"id", id},       {"task", task},    {"question", question},
                              {"expected", expected}, {"given", given}, {"images", images}};
  if (!captions.empty()) json["captions"] = captions;
  for (const auto& mask : masks) {
    json["masks"].push_back({{"structure", mask.structure}, {"dice", mask.dice}, {"overlay", mask.overlay}});
  }
  return io::json_text(json);
}

std::string thumbnail_data_uri(const at::Tensor& picture) {
  return data_uri(shrunk(picture, bounded({picture.size(1), picture.size(2)}, kThumbnailPixels)), kJpegQuality);
}

std::string thumbnail_data_uri(const io::Medium& picture) {
  if (picture.is_volume) return data_uri(image::orthogonal_slices_of(picture, kThumbnailPixels), kJpegQuality);
  return thumbnail_data_uri(image::decode_image(picture));
}

std::string overlay_data_uri(const at::Tensor& picture, const at::Tensor& drawn, const at::Tensor& truth) {
  const image::ImageSize size = bounded({picture.size(1), picture.size(2)}, kOverlayPixels);
  const auto small = [&](const at::Tensor& mask) { return image::resize_mask(mask, size.height, size.width); };
  return data_uri(image::draw_beside_truth(shrunk(picture, size), {small(drawn)}, {small(truth)}), kOverlayQuality);
}

}  // namespace vlmtrain::report
