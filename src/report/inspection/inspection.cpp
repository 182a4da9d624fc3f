#include "vlmtrain/report/inspection.h"

#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::report {

namespace {

using nlohmann::ordered_json;

ordered_json make_json(const data::Histogram& histogram) {
  auto bins = ordered_json::array();
  for (const auto& bin : histogram.bins) bins.push_back({bin.first, bin.last, bin.count});
  ordered_json json{{"sum", histogram.sum},
                    {"mean", histogram.mean()},
                    {"min", histogram.min},
                    {"median", histogram.median},
                    {"percentile_95", histogram.percentile_95},
                    {"max", histogram.max},
                    {"bins", std::move(bins)}};
  io::add_field_aliases(json, {{"min", "least"}, {"max", "most"}});
  return json;
}

ordered_json make_json(const data::SampleShape& shape) {
  return {{"tokens", shape.tokens},
          {"label_tokens", shape.label_tokens},
          {"image_tokens", shape.image_tokens},
          {"images", shape.num_media()},
          {"tiles", shape.pixel_rows},
          {"videos", shape.num_videos},
          {"video_frames", shape.video_frames},
          {"volumes", shape.num_volumes}};
}

ordered_json make_json(const std::vector<data::MissingFile>& files) {
  auto list = ordered_json::array();
  for (const auto& file : files) {
    list.push_back({{"file", file.path},
                    {"reason", file.reason},
                    {"first_index", file.first_record_index},
                    {"samples", file.num_records}});
  }
  return list;
}

ordered_json make_sources_json(const Inspection& inspection) {
  auto sources = ordered_json::array();
  const auto optional_to_json = [](const auto& number) { return number ? ordered_json(*number) : ordered_json(); };
  for (const auto& source : inspection.sources) {
    sources.push_back({{"path", source.source.path},
                       {"weight", optional_to_json(source.source.weight)},
                       {"repeat", optional_to_json(source.source.repeat)},
                       {"task", source.source.task},
                       {"samples", source.num_records},
                       {"usable", source.num_usable_samples},
                       {"shrunk", source.num_shrunk_samples},
                       {"without_media", source.num_samples_without_media}});
  }
  return sources;
}

ordered_json make_mixture_json(const Inspection& inspection) {
  auto mixture_json = ordered_json::array();
  for (const auto& source : inspection.mixture_sources) {
    mixture_json.push_back({{"name", source.name},
                            {"share", source.share},
                            {"usable", source.num_usable_samples},
                            {"repeat", source.repeat},
                            {"epochs", source.epochs}});
  }
  return mixture_json;
}

ordered_json make_tasks_json(const Inspection& inspection) {
  auto tasks = ordered_json::object();
  for (const auto& task : inspection.tasks) {
    tasks[task.name] = {{"samples", task.samples}, {"tokens", task.tokens}, {"label_tokens", task.label_tokens}};
  }
  return tasks;
}

ordered_json make_largest_samples_json(const Inspection& inspection) {
  auto largest_samples_json = ordered_json::array();
  for (const auto& sample : inspection.largest_samples) {
    ordered_json entry{{"index", sample.index}, {"id", sample.id}};
    entry.update(make_json(sample.shape));
    entry["predicted_bytes"] = sample.predicted_bytes > 0 ? ordered_json(sample.predicted_bytes) : ordered_json();
    largest_samples_json.push_back(std::move(entry));
  }
  return largest_samples_json;
}

/// Returns the statistics of packs; null without packing.
ordered_json make_packs_json(const Inspection& inspection) {
  if (!inspection.pack_limits) return {};
  const data::PackStatistics& packs = inspection.pack_statistics;
  return {{"packs", packs.fill.num_packs},
          {"max_tokens", inspection.pack_limits->max_tokens},
          {"max_images", inspection.pack_limits->max_media},
          {"max_tiles",
           inspection.pack_limits->max_tiles ? ordered_json(*inspection.pack_limits->max_tiles) : ordered_json()},
          {"tokens_filled", packs.fill.token_fill},
          {"images_filled", packs.fill.media_fill},
          {"bound_by",
           {{"tokens", packs.num_token_limited_packs()},
            {"images", packs.num_packs_at_media_limit},
            {"tiles", packs.num_packs_at_tile_limit}}},
          {"most_tiles", packs.fill.max_tiles},
          {"most_tiles_ids", inspection.largest_pack_sample_ids}};
}

/// Returns the content of data.eval; null without one.
ordered_json make_evaluation_json(const Inspection& inspection) {
  if (!inspection.evaluation) return {};
  const InspectedEvaluation& evaluation = *inspection.evaluation;
  auto duplicates_json = ordered_json::array();
  for (const auto& [id, train_id] : evaluation.duplicate_id_pairs)
    duplicates_json.push_back({{"id", id}, {"trained_id", train_id}});
  ordered_json json{{"ledger", evaluation.ledger.to_json()},
                    {"without_media", evaluation.num_samples_without_media},
                    {"missing_files", make_json(evaluation.missing_files)},
                    {"train_duplicates", std::move(duplicates_json)},
                    {"with_trained_media", evaluation.ids_with_train_media},
                    {"trained_subjects", evaluation.train_subjects},
                    {"with_trained_subjects", evaluation.ids_with_train_subjects}};
  io::add_field_aliases(json, {{"train_duplicates", "also_trained"}});
  return json;
}

/// Returns the GPU for which memory was predicted; null if none was.
ordered_json make_memory_prediction_target_json(const Inspection& inspection) {
  const auto& target = inspection.memory_prediction_target;
  if (!target) return {};
  ordered_json json{{"gpu", target->gpu}, {"fits", target->fits}, {"plan", target->plan_headline}};
  io::add_field_aliases(json, {{"gpu", "card"}});
  return json;
}

ordered_json make_samples_json(const Inspection& inspection) {
  auto samples_json = ordered_json::array();
  for (const auto& sample : inspection.sample_previews) {
    auto spans = ordered_json::array();
    for (const text::TextSpan& answer : sample.rendered_chat.answers) spans.push_back({answer.begin, answer.end});
    auto media_json = ordered_json::array();
    for (const auto& preview : sample.media_previews) {
      media_json.push_back({{"medium", preview.media_index},
                            {"frame", preview.frame_index},
                            {"height", preview.pixels.size(1)},
                            {"width", preview.pixels.size(2)},
                            {"tile_height", preview.tile_height},
                            {"tile_width", preview.tile_width},
                            {"is_overview", preview.is_overview}});
      for (const auto& [first, last] : preview.boxes)
        media_json.back()["boxes"].push_back({first.x, first.y, last.x, last.y});
      if (!preview.is_volume()) continue;
      media_json.back()["voxels"] = preview.volume_size;
      media_json.back()["name"] = preview.name;
    }
    ordered_json entry{{"index", sample.index}, {"id", sample.id}, {"task", sample.task}, {"problem", sample.problem}};
    entry.update(make_json(sample.shape));
    entry["text"] = sample.rendered_chat.text;
    entry["label_spans"] = std::move(spans);
    if (const auto& weights = sample.rendered_chat.answer_weights; !weights.empty()) entry["label_weights"] = weights;
    entry["label_text"] = sample.label_text;
    entry["media"] = std::move(media_json);
    io::add_field_aliases(entry, {{"label_text", "learnt"}, {"media", "pictures"}});
    samples_json.push_back(std::move(entry));
  }
  return samples_json;
}

}  // namespace

int64_t Inspection::count_duplicate_samples() const {
  int64_t samples = 0;
  for (const auto& group : duplicate_samples) samples += std::ssize(group) - 1;
  return samples;
}

ordered_json Inspection::to_json() const {
  auto missing_files_json = make_json(missing_files);
  for (size_t i = 0; i < missing_files_json.size(); ++i)
    missing_files_json[i]["first_id"] = missing_file_sample_ids.at(i);
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
                    {"sources", make_sources_json(*this)},
                    {"mixture", make_mixture_json(*this)},
                    {"tasks", make_tasks_json(*this)},
                    {"histograms",
                     {{"tokens", make_json(tokens)},
                      {"label_tokens", make_json(label_tokens)},
                      {"images", make_json(images)},
                      {"volumes", make_json(volumes)},
                      {"tiles", make_json(pixel_rows)},
                      {"video_frames", make_json(video_frames)}}},
                    {"tiles_are", pixel_row_name()},
                    {"ledger", ledger.to_json()},
                    {"largest", make_largest_samples_json(*this)},
                    {"predicted_for", make_memory_prediction_target_json(*this)},
                    {"media", num_distinct_media},
                    {"decoded", has_decoded_media},
                    {"missing_files", std::move(missing_files_json)},
                    {"same_samples", {{"repeated", count_duplicate_samples()}, {"groups", duplicate_samples}}},
                    {"same_files", duplicate_files},
                    {"repeated_ids", {{"ids", num_repeated_ids}, {"first", first_repeated_id}}},
                    {"evaluation", make_evaluation_json(*this)},
                    {"packs", make_packs_json(*this)},
                    {"shown", make_samples_json(*this)},
                    {"seconds", seconds}};
  io::add_field_aliases(json, {{"mixture", "drawn_from"}});
  return json;
}

}  // namespace vlmtrain::report
