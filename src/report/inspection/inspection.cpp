#include "vlmtrain/report/inspection.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/format/html.h"
#include "report/format/text_layout.h"
#include "report/inspection/inspection_sections.h"
#include "vlmtrain/base/base64.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::report {

namespace {

using nlohmann::ordered_json;

/// The conversions of the parts of an inspection; empty optional values become null.
struct JsonMaker {
  static ordered_json make(const data::Histogram::Bin& bin) { return {bin.first, bin.last, bin.count}; }
  static ordered_json make(const text::TextSpan& span) { return {span.begin, span.end}; }
  static ordered_json make(const std::pair<std::string, std::string>& pair) {
    return {{"id", pair.first}, {"trained_id", pair.second}};
  }
  template <class Number>
  requires std::is_arithmetic_v<Number>
  static ordered_json make(Number number) { return number; }
  template <class Value>
  static ordered_json make(const std::optional<Value>& value) {
    return value ? make(*value) : ordered_json();
  }
  template <class Value>
  static ordered_json make(const std::vector<Value>& values) {
    auto array = ordered_json::array();
    for (const Value& value : values) array.push_back(make(value));
    return array;
  }

  static ordered_json make(const data::Histogram& histogram) {
    ordered_json json{{"sum", histogram.sum},
                      {"mean", histogram.mean()},
                      {"min", histogram.min},
                      {"median", histogram.median},
                      {"percentile_95", histogram.percentile_95},
                      {"max", histogram.max},
                      {"bins", make(histogram.bins)}};
    io::add_field_aliases(json, {{"min", "least"}, {"max", "most"}});
    return json;
  }

  static ordered_json make(const data::SampleShape& shape) {
    return {{"tokens", shape.tokens},
            {"label_tokens", shape.label_tokens},
            {"image_tokens", shape.image_tokens},
            {"images", shape.num_media()},
            {"tiles", shape.pixel_rows},
            {"videos", shape.num_videos},
            {"video_frames", shape.video_frames},
            {"volumes", shape.num_volumes}};
  }

  static ordered_json make(const data::MissingFile& file) {
    return {{"file", file.path},
            {"reason", file.reason},
            {"first_index", file.first_record_index},
            {"samples", file.num_records}};
  }

  static ordered_json make(const InspectedSource& source) {
    return {{"path", source.source.path},           {"weight", make(source.source.weight)},
            {"repeat", make(source.source.repeat)}, {"task", source.source.task},
            {"samples", source.num_records},        {"usable", source.num_usable_samples},
            {"shrunk", source.num_shrunk_samples},  {"without_media", source.num_samples_without_media}};
  }

  static ordered_json make(const InspectedMixtureSource& source) {
    return {{"name", source.name},
            {"share", source.share},
            {"usable", source.num_usable_samples},
            {"repeat", source.repeat},
            {"epochs", source.epochs}};
  }

  static ordered_json make(const LargeSample& sample) {
    ordered_json json{{"index", sample.index}, {"id", sample.id}};
    json.update(make(sample.shape));
    json["predicted_bytes"] = sample.predicted_bytes > 0 ? ordered_json(sample.predicted_bytes) : ordered_json();
    return json;
  }

  /// Returns the statistics of packs; null without packing.
  static ordered_json make_packs(const Inspection& inspection) {
    if (!inspection.pack_limits) return {};
    const data::PackStatistics& packs = inspection.pack_statistics;
    return {{"packs", packs.fill.num_packs},
            {"max_tokens", inspection.pack_limits->max_tokens},
            {"max_images", inspection.pack_limits->max_media},
            {"max_tiles", make(inspection.pack_limits->max_tiles)},
            {"tokens_filled", packs.fill.token_fill},
            {"images_filled", packs.fill.media_fill},
            {"bound_by",
             {{"tokens", packs.num_token_limited_packs()},
              {"images", packs.num_packs_at_media_limit},
              {"tiles", packs.num_packs_at_tile_limit}}},
            {"most_tiles", packs.fill.max_tiles},
            {"most_tiles_ids", inspection.largest_pack_sample_ids}};
  }

  static ordered_json make(const InspectedEvaluation& evaluation) {
    ordered_json json{{"ledger", evaluation.ledger.to_json()},
                      {"without_media", evaluation.num_samples_without_media},
                      {"missing_files", make(evaluation.missing_files)},
                      {"train_duplicates", make(evaluation.duplicate_id_pairs)},
                      {"with_trained_media", evaluation.ids_with_train_media},
                      {"trained_subjects", evaluation.train_subjects},
                      {"with_trained_subjects", evaluation.ids_with_train_subjects}};
    io::add_field_aliases(json, {{"train_duplicates", "also_trained"}});
    return json;
  }

  static ordered_json make(const MemoryPredictionTarget& target) {
    ordered_json json{{"gpu", target.gpu}, {"fits", target.fits}, {"plan", target.plan_headline}};
    io::add_field_aliases(json, {{"gpu", "card"}});
    return json;
  }

  static ordered_json make(const models::MediaPreview& preview) {
    ordered_json json{{"medium", preview.media_index},      {"frame", preview.frame_index},
                      {"height", preview.pixels.size(1)},   {"width", preview.pixels.size(2)},
                      {"tile_height", preview.tile_height}, {"tile_width", preview.tile_width},
                      {"is_overview", preview.is_overview}};
    for (const auto& [first, last] : preview.boxes) json["boxes"].push_back({first.x, first.y, last.x, last.y});
    if (!preview.is_volume()) return json;
    json["voxels"] = preview.volume_size;
    json["name"] = preview.name;
    return json;
  }

  static ordered_json make(const SamplePreview& sample) {
    const auto& chat = sample.rendered_chat;
    ordered_json json{{"index", sample.index}, {"id", sample.id}, {"task", sample.task}, {"problem", sample.problem}};
    json.update(make(sample.shape));
    json["text"] = chat.text;
    json["label_spans"] = make(chat.answers);
    if (!chat.answer_weights.empty()) json["label_weights"] = chat.answer_weights;
    json["label_text"] = sample.label_text;
    json["media"] = make(sample.media_previews);
    io::add_field_aliases(json, {{"label_text", "learnt"}, {"media", "pictures"}});
    return json;
  }
};

}  // namespace

int64_t Inspection::count_duplicate_samples() const {
  int64_t samples = 0;
  for (const auto& group : duplicate_samples) samples += std::ssize(group) - 1;
  return samples;
}

ordered_json Inspection::to_json() const {
  const auto make = [](const auto& value) { return JsonMaker::make(value); };
  auto missing_files_json = make(missing_files);
  for (size_t i = 0; i < missing_files_json.size(); ++i)
    missing_files_json[i]["first_id"] = missing_file_sample_ids.at(i);
  auto tasks_json = ordered_json::object();
  for (const auto& task : tasks)
    tasks_json[task.name] = {{"samples", task.samples}, {"tokens", task.tokens}, {"label_tokens", task.label_tokens}};
  ordered_json json{{"dataset", dataset},
                    {"model", model},
                    {"chat_template", chat_template},
                    {"samples", ledger.num_samples()},
                    {"usable", num_usable_samples()},
                    {"without_media", num_samples_without_media},
                    {"without_effect", remarks},
                    {"stops_run", stops_training},
                    {"no_order", sample_order_error},
                    {"steps", steps},
                    {"global_batch_size", global_batch_size},
                    {"epochs", epochs},
                    {"sources", make(sources)},
                    {"mixture", make(mixture_sources)},
                    {"tasks", std::move(tasks_json)},
                    {"histograms",
                     {{"tokens", make(tokens)},
                      {"label_tokens", make(label_tokens)},
                      {"images", make(images)},
                      {"volumes", make(volumes)},
                      {"tiles", make(pixel_rows)},
                      {"video_frames", make(video_frames)}}},
                    {"tiles_are", pixel_row_name()},
                    {"ledger", ledger.to_json()},
                    {"largest", make(largest_samples)},
                    {"predicted_for", make(memory_prediction_target)},
                    {"media", num_distinct_media},
                    {"decoded", has_decoded_media},
                    {"missing_files", std::move(missing_files_json)},
                    {"same_samples", {{"repeated", count_duplicate_samples()}, {"groups", duplicate_samples}}},
                    {"same_files", duplicate_files},
                    {"repeated_ids", {{"ids", num_repeated_ids}, {"first", first_repeated_id}}},
                    {"evaluation", make(evaluation)},
                    {"packs", JsonMaker::make_packs(*this)},
                    {"shown", make(sample_previews)},
                    {"seconds", seconds}};
  io::add_field_aliases(json, {{"mixture", "drawn_from"}});
  return json;
}

namespace {

/// Frames of a video or series that are shown, so that the page stays small. Not tuned.
constexpr int64_t kMaxShownFrames = 16;

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

/// Returns the outlines of the boxes and crosses for the points.
std::string render_boxes(const models::MediaPreview& preview) {
  constexpr double kCrossArm = 6;  // pixels of the image; chosen by eye
  std::string elements;
  for (const image::Box& box : preview.boxes) {
    const auto [x1, y1] = box.top_left;
    const auto [x2, y2] = box.bottom_right;
    if (box.is_point()) {
      elements += fmt::format(R"(<path class="box" d="M{:.1f} {:.1f}h{}M{:.1f} {:.1f}v{}"/>)", x1 - kCrossArm, y1,
                              2 * kCrossArm, x1, y1 - kCrossArm, 2 * kCrossArm);
    } else {
      elements += fmt::format(R"(<path class="box" d="M{:.1f} {:.1f}H{:.1f}V{:.1f}H{:.1f}Z"/>)", x1, y1, x2, y2, x1);
    }
  }
  return elements;
}

std::string format_volume_caption(const models::MediaPreview& preview, int64_t num_frames) {
  const auto& [right, front, top] = preview.volume_size;
  std::string text = fmt::format("volume {}: {} × {} × {}", preview.media_index + 1, right, front, top);
  if (num_frames > 1) text += fmt::format(", frame {} of {}", preview.frame_index + 1, num_frames);
  if (!preview.name.empty()) text += fmt::format(", {}", escape_html(to_printable(preview.name)));
  return text;
}

std::string format_caption(const models::MediaPreview& preview, int64_t num_frames) {
  if (preview.is_volume()) return format_volume_caption(preview, num_frames);
  const int64_t height = preview.pixels.size(1), width = preview.pixels.size(2);
  std::string text =
      fmt::format("{}{}: {} × {}", num_frames > 1 ? "video " : "", preview.media_index + 1, width, height);
  if (num_frames > 1) text += fmt::format(", frame {} of {}", preview.frame_index + 1, num_frames);
  const int64_t rows = height / preview.tile_height, columns = width / preview.tile_width;
  if (rows * columns > 1) text += fmt::format(", {} × {} tiles", columns, rows);
  if (preview.is_overview) text += ", overview";
  if (preview.is_crop) text += ", crop";
  if (!preview.boxes.empty()) text += ", " + pluralize(std::ssize(preview.boxes), "object");
  return text;
}

std::string render_media_figure(const models::MediaPreview& preview, int64_t num_frames) {
  const int64_t height = preview.pixels.size(1), width = preview.pixels.size(2);
  return fmt::format(
      R"(<figure{}><svg viewBox="0 0 {} {}"><image width="{}" height="{}" href="data:image/png;base64,{}"/>{}{}</svg>)"
      "<figcaption>{}</figcaption></figure>\n",
      preview.is_overview || num_frames > 1 ? R"( class="small")" : "", width, height, width, height,
      base64_encode(image::encode_png(preview.pixels.contiguous())), render_tile_lines(preview), render_boxes(preview),
      format_caption(preview, num_frames));
}

}  // namespace

std::string render_media_previews(const std::vector<models::MediaPreview>& previews) {
  std::string html;
  for (auto first = previews.begin(); first != previews.end();) {
    const auto end =
        std::find_if(first, previews.end(), [&](const auto& other) { return other.media_index != first->media_index; });
    const auto is_frame = [](const models::MediaPreview& preview) { return preview.frame_index > 0; };
    const int64_t num_frames = std::any_of(first, end, is_frame) ? end - first : 1;
    const int64_t num_shown_previews = num_frames > 1 ? std::min(num_frames, kMaxShownFrames) : end - first;
    for (int64_t i = 0; i < num_shown_previews; ++i)
      html += render_media_figure(first[num_frames > 1 ? i * num_frames / num_shown_previews : i], num_frames);
    first = end;
  }
  return html;
}

std::string format_inspection(const Inspection& inspection, const TextStyle& style) {
  TextWriter writer(style);
  writer.add_lines(inspection.stops_training ? "1;31" : "1;32",
                   wrap_text("", format_inspection_headline(inspection), writer.columns()));
  for (const Section& section : make_inspection_sections(inspection)) writer.add_section(section);
  return writer.text();
}

std::string render_inspection_page(const Inspection& inspection) {
  std::string sections;
  for (const Section& section : make_inspection_sections(inspection)) sections += render_section_html(section);
  const char* const media_note =
      inspection.has_grid_rows
          ? "Volumes are shown as the vision tower's input, resampled and normalized: the middle axial, coronal and "
            "sagittal slices, the subject's right on the left."
          : "Images are shown as the vision tower's input before normalization, pixel for pixel; lines separate the "
            "tiles.";
  return fill_page_template(
      "inspection.html",
      {{"title", escape_html_line(inspection.dataset + ": what is trained on")},
       {"style", std::string(resources().at("common.css")) + std::string(resources().at("inspection.css"))},
       {"answer_class", inspection.stops_training ? "fails" : "fits"},
       {"headline", escape_html_line(format_inspection_headline(inspection))},
       {"sections", sections},
       {"media_note", escape_html(media_note)}});
}

std::string highlight_answers(const text::RenderedChat& chat, std::string_view open, std::string_view close,
                              std::string (*escape)(std::string_view)) {
  std::string text;
  const auto add = [&](size_t begin, size_t end) {
    const std::string_view piece = std::string_view(chat.text).substr(begin, end - begin);
    text += escape == nullptr ? std::string(piece) : escape(piece);
  };
  size_t position = 0;
  for (size_t i = 0; i < chat.answers.size(); ++i) {
    const text::TextSpan& answer = chat.answers[i];
    add(position, answer.begin);
    text += open;
    add(answer.begin, answer.end);
    text += close;
    if (!chat.answer_weights.empty() && chat.answer_weights[i] != 1) text += fmt::format("×{}", chat.answer_weights[i]);
    position = answer.end;
  }
  add(position, chat.text.size());
  return text;
}

}  // namespace vlmtrain::report
