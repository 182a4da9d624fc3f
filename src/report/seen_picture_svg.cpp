#include "report/seen_picture_svg.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/base64.h"
#include "report/page.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/image/encode.h"

namespace vlmtrain::report {

namespace {

constexpr int64_t kMostFrames = 16;  // of a video or a series

std::string tile_lines(const models::SeenPicture& picture) {
  const int64_t height = picture.pixels.size(1), width = picture.pixels.size(2);
  std::string lines;
  for (int64_t top = picture.tile_height; top < height; top += picture.tile_height) {
    lines += fmt::format("M0 {}H{}", top, width);
  }
  for (int64_t left = picture.tile_width; left < width; left += picture.tile_width) {
    lines += fmt::format("M{} 0V{}", left, height);
  }
  return lines.empty() ? "" : fmt::format(R"(<path class="tiles" d="{}"/>)", lines);
}

std::string volume_caption(const models::SeenPicture& picture, int64_t frames) {
  const auto& [right, front, top] = picture.voxels;
  std::string text = fmt::format("volume {}: {} × {} × {}", picture.medium + 1, right, front, top);
  if (frames > 1) text += fmt::format(", frame {} of {}", picture.frame + 1, frames);
  if (!picture.name.empty()) text += fmt::format(", {}", html_escaped(printable(picture.name)));
  return text;
}

std::string caption(const models::SeenPicture& picture, int64_t frames) {
  if (picture.is_volume()) return volume_caption(picture, frames);
  const int64_t height = picture.pixels.size(1), width = picture.pixels.size(2);
  std::string text = fmt::format("{}{}: {} × {}", frames > 1 ? "video " : "", picture.medium + 1, width, height);
  if (frames > 1) text += fmt::format(", frame {} of {}", picture.frame + 1, frames);
  const int64_t rows = height / picture.tile_height, columns = width / picture.tile_width;
  if (rows * columns > 1) text += fmt::format(", {} × {} tiles", columns, rows);
  if (picture.is_overview) text += ", the whole once more";
  return text;
}

std::string figure(const models::SeenPicture& picture, int64_t frames) {
  const int64_t height = picture.pixels.size(1), width = picture.pixels.size(2);
  return fmt::format(
      R"(<figure{}><svg viewBox="0 0 {} {}"><image width="{}" height="{}" href="data:image/png;base64,{}"/>{}</svg>)"
      "<figcaption>{}</figcaption></figure>\n",
      picture.is_overview || frames > 1 ? R"( class="small")" : "", width, height, width, height,
      base64(image::encode_png(picture.pixels.contiguous())), tile_lines(picture), caption(picture, frames));
}

}  // namespace

std::string seen_pictures_html(const std::vector<models::SeenPicture>& pictures) {
  std::string html;
  for (auto first = pictures.begin(); first != pictures.end();) {
    const auto end =
        std::find_if(first, pictures.end(), [&](const auto& other) { return other.medium != first->medium; });
    const auto is_frame = [](const models::SeenPicture& picture) { return picture.frame > 0; };
    const int64_t frames = std::any_of(first, end, is_frame) ? end - first : 1;
    const int64_t shown = frames > 1 ? std::min(frames, kMostFrames) : end - first;
    for (int64_t i = 0; i < shown; ++i) html += figure(first[frames > 1 ? i * frames / shown : i], frames);
    first = end;
  }
  return html;
}

}  // namespace vlmtrain::report
