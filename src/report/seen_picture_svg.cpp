#include "report/seen_picture_svg.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/base64.h"
#include "report/format/html.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/image/encode.h"

namespace vlmtrain::report {

namespace {

constexpr int64_t kMaxFrames = 16;  // of a video or a series

std::string render_tile_lines(const models::MediaPreview& preview) {
  const int64_t height = preview.pixels.size(1), width = preview.pixels.size(2);
  std::string lines;
  for (int64_t top = preview.tile_height; top < height; top += preview.tile_height) {
    lines += fmt::format("M0 {}H{}", top, width);
  }
  for (int64_t left = preview.tile_width; left < width; left += preview.tile_width) {
    lines += fmt::format("M{} 0V{}", left, height);
  }
  return lines.empty() ? "" : fmt::format(R"(<path class="tiles" d="{}"/>)", lines);
}

std::string format_volume_caption(const models::MediaPreview& preview, int64_t frames) {
  const auto& [right, front, top] = preview.voxels;
  std::string text = fmt::format("volume {}: {} × {} × {}", preview.media_index + 1, right, front, top);
  if (frames > 1) text += fmt::format(", frame {} of {}", preview.frame_index + 1, frames);
  if (!preview.name.empty()) text += fmt::format(", {}", escape_html(to_printable(preview.name)));
  return text;
}

std::string format_caption(const models::MediaPreview& preview, int64_t frames) {
  if (preview.is_volume()) return format_volume_caption(preview, frames);
  const int64_t height = preview.pixels.size(1), width = preview.pixels.size(2);
  std::string text = fmt::format("{}{}: {} × {}", frames > 1 ? "video " : "", preview.media_index + 1, width, height);
  if (frames > 1) text += fmt::format(", frame {} of {}", preview.frame_index + 1, frames);
  const int64_t rows = height / preview.tile_height, columns = width / preview.tile_width;
  if (rows * columns > 1) text += fmt::format(", {} × {} tiles", columns, rows);
  if (preview.is_overview) text += ", the whole once more";
  return text;
}

std::string render_figure(const models::MediaPreview& preview, int64_t frames) {
  const int64_t height = preview.pixels.size(1), width = preview.pixels.size(2);
  return fmt::format(
      R"(<figure{}><svg viewBox="0 0 {} {}"><image width="{}" height="{}" href="data:image/png;base64,{}"/>{}</svg>)"
      "<figcaption>{}</figcaption></figure>\n",
      preview.is_overview || frames > 1 ? R"( class="small")" : "", width, height, width, height,
      base64_encode(image::encode_png(preview.pixels.contiguous())), render_tile_lines(preview),
      format_caption(preview, frames));
}

}  // namespace

std::string render_media_previews(const std::vector<models::MediaPreview>& previews) {
  std::string html;
  for (auto first = previews.begin(); first != previews.end();) {
    const auto end =
        std::find_if(first, previews.end(), [&](const auto& other) { return other.media_index != first->media_index; });
    const auto is_frame = [](const models::MediaPreview& preview) { return preview.frame_index > 0; };
    const int64_t frames = std::any_of(first, end, is_frame) ? end - first : 1;
    const int64_t num_shown = frames > 1 ? std::min(frames, kMaxFrames) : end - first;
    for (int64_t i = 0; i < num_shown; ++i)
      html += render_figure(first[frames > 1 ? i * frames / num_shown : i], frames);
    first = end;
  }
  return html;
}

}  // namespace vlmtrain::report
