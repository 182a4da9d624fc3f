#include "vlmtrain/report/inspection.h"

#include "vlmtrain/base/text_format.h"
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

}  // namespace vlmtrain::report
