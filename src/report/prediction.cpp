#include "vlmtrain/report/prediction.h"

#include <algorithm>
#include <cmath>

#include "report/base64.h"
#include "report/json_line.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/decode.h"
#include "vlmtrain/image/encode.h"
#include "vlmtrain/image/resize.h"
#include "vlmtrain/io/json_text.h"

namespace vlmtrain::report {

namespace {

constexpr int kJpegQuality = 85;

at::Tensor thumbnail(const at::Tensor& picture) {
  const int64_t height = picture.size(1);
  const int64_t width = picture.size(2);
  const int64_t longest = std::max(height, width);
  if (longest <= kThumbnailPixels) return picture;
  const auto scaled = [&](int64_t side) {
    return std::max<int64_t>(1,
                             std::llround(static_cast<double>(side * kThumbnailPixels) / static_cast<double>(longest)));
  };
  return image::resize(picture, scaled(height), scaled(width), image::Filter::kBilinear);
}

}  // namespace

std::string Prediction::to_json_line() const {
  return io::json_text(nlohmann::ordered_json{{"step", step},
                                              {"id", id},
                                              {"task", task},
                                              {"question", question},
                                              {"expected", expected},
                                              {"given", given},
                                              {"images", images}});
}

std::string thumbnail_data_uri(const at::Tensor& picture) {
  return "data:image/jpeg;base64," + base64(image::encode_jpeg(thumbnail(picture), kJpegQuality));
}

std::string thumbnail_data_uri(const io::Medium& picture) {
  return thumbnail_data_uri(image::decode_image(picture));
}

}  // namespace vlmtrain::report
