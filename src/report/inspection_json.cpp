#include "vlmtrain/base/printable.h"
#include "vlmtrain/report/inspection.h"

namespace vlmtrain::report {

namespace {

using nlohmann::ordered_json;

ordered_json json_of(const data::Histogram& histogram) {
  auto bins = ordered_json::array();
  for (const auto& bin : histogram.bins) bins.push_back({bin.first, bin.last, bin.count});
  return {{"sum", histogram.sum},
          {"mean", histogram.mean()},
          {"least", histogram.least},
          {"median", histogram.median},
          {"percentile_95", histogram.percentile_95},
          {"most", histogram.most},
          {"bins", std::move(bins)}};
}

ordered_json json_of(const data::SampleShape& shape) {
  return {{"tokens", shape.tokens},
          {"label_tokens", shape.label_tokens},
          {"image_tokens", shape.image_tokens},
          {"images", shape.images},
          {"tiles", shape.pixel_rows},
          {"videos", shape.videos},
          {"video_frames", shape.video_frames},
          {"volumes", shape.volumes}};
}

ordered_json json_of(const std::vector<data::MissingFile>& files) {
  auto list = ordered_json::array();
  for (const auto& file : files) {
    list.push_back(
        {{"file", file.path}, {"reason", file.reason}, {"first_index", file.first}, {"samples", file.records}});
  }
  return list;
}

ordered_json sources_of(const Inspection& inspection) {
  auto sources = ordered_json::array();
  const auto or_null = [](const auto& number) { return number ? ordered_json(*number) : ordered_json(); };
  for (const auto& source : inspection.sources) {
    sources.push_back({{"path", source.source.path},
                       {"weight", or_null(source.source.weight)},
                       {"repeat", or_null(source.source.repeat)},
                       {"task", source.source.task},
                       {"samples", source.records},
                       {"usable", source.usable},
                       {"shrunk", source.shrunk},
                       {"without_media", source.without_media}});
  }
  return sources;
}

ordered_json lanes_of(const Inspection& inspection) {
  auto lanes = ordered_json::array();
  for (const auto& lane : inspection.lanes) {
    lanes.push_back({{"name", lane.name},
                     {"share", lane.share},
                     {"usable", lane.usable},
                     {"repeat", lane.repeat},
                     {"epochs", lane.epochs}});
  }
  return lanes;
}

ordered_json tasks_of(const Inspection& inspection) {
  auto tasks = ordered_json::object();
  for (const auto& task : inspection.tasks) {
    tasks[task.name] = {{"samples", task.samples}, {"tokens", task.tokens}, {"label_tokens", task.label_tokens}};
  }
  return tasks;
}

ordered_json largest_of(const Inspection& inspection) {
  auto largest = ordered_json::array();
  for (const auto& sample : inspection.largest) {
    ordered_json entry{{"index", sample.index}, {"id", sample.id}};
    entry.update(json_of(sample.shape));
    entry["predicted_bytes"] = sample.predicted_bytes > 0 ? ordered_json(sample.predicted_bytes) : ordered_json();
    largest.push_back(std::move(entry));
  }
  return largest;
}

ordered_json packs_of(const Inspection& inspection) {
  if (!inspection.pack_limits) return {};
  const data::PackCensus& packs = inspection.packs;
  return {{"packs", packs.fill.packs},
          {"max_tokens", inspection.pack_limits->tokens},
          {"max_images", inspection.pack_limits->images},
          {"max_tiles", inspection.pack_limits->tiles ? ordered_json(*inspection.pack_limits->tiles) : ordered_json()},
          {"tokens_filled", packs.fill.tokens},
          {"images_filled", packs.fill.images},
          {"bound_by",
           {{"tokens", packs.bound_by_tokens()}, {"images", packs.bound_by_images}, {"tiles", packs.bound_by_tiles}}},
          {"most_tiles", packs.fill.most_tiles},
          {"most_tiles_ids", inspection.pack_of_most_tiles}};
}

ordered_json evaluation_of(const Inspection& inspection) {
  if (!inspection.evaluation) return {};
  const InspectedEvaluation& evaluation = *inspection.evaluation;
  auto same = ordered_json::array();
  for (const auto& [id, trained] : evaluation.also_trained) same.push_back({{"id", id}, {"trained_id", trained}});
  return {{"ledger", evaluation.ledger.to_json()},
          {"without_media", evaluation.without_media},
          {"missing_files", json_of(evaluation.missing_files)},
          {"also_trained", std::move(same)},
          {"with_trained_media", evaluation.with_trained_media},
          {"trained_subjects", evaluation.trained_subjects},
          {"with_trained_subjects", evaluation.with_trained_subjects}};
}

ordered_json shown_of(const Inspection& inspection) {
  auto shown = ordered_json::array();
  for (const auto& sample : inspection.shown) {
    auto spans = ordered_json::array();
    for (const text::Span& answer : sample.chat.answers) spans.push_back({answer.begin, answer.end});
    auto pictures = ordered_json::array();
    for (const auto& picture : sample.pictures) {
      pictures.push_back({{"medium", picture.medium},
                          {"frame", picture.frame},
                          {"height", picture.pixels.size(1)},
                          {"width", picture.pixels.size(2)},
                          {"tile_height", picture.tile_height},
                          {"tile_width", picture.tile_width},
                          {"is_overview", picture.is_overview}});
      if (!picture.is_volume()) continue;
      pictures.back()["voxels"] = picture.voxels;
      pictures.back()["name"] = picture.name;
    }
    ordered_json entry{{"index", sample.index}, {"id", sample.id}, {"task", sample.task}, {"problem", sample.problem}};
    entry.update(json_of(sample.shape));
    entry["text"] = sample.chat.text;
    entry["label_spans"] = std::move(spans);
    entry["learnt"] = sample.learnt;
    entry["pictures"] = std::move(pictures);
    shown.push_back(std::move(entry));
  }
  return shown;
}

}  // namespace

int64_t Inspection::repeated() const {
  int64_t samples = 0;
  for (const auto& group : same_samples) samples += std::ssize(group) - 1;
  return samples;
}

ordered_json Inspection::to_json() const {
  auto missing = json_of(missing_files);
  for (size_t i = 0; i < missing.size(); ++i) missing[i]["first_id"] = missing_in.at(i);
  return {{"dataset", dataset},
          {"model", model},
          {"chat_template", chat_template},
          {"samples", ledger.samples()},
          {"usable", usable()},
          {"without_media", without_media},
          {"without_effect", remarks},
          {"stops_run", stops_run},
          {"no_order", no_order},
          {"steps", steps},
          {"global_batch_size", global_batch_size},
          {"epochs", epochs},
          {"sources", sources_of(*this)},
          {"drawn_from", lanes_of(*this)},
          {"tasks", tasks_of(*this)},
          {"histograms",
           {{"tokens", json_of(tokens)},
            {"label_tokens", json_of(label_tokens)},
            {"images", json_of(images)},
            {"volumes", json_of(volumes)},
            {"tiles", json_of(pixel_rows)},
            {"video_frames", json_of(video_frames)}}},
          {"tiles_are", row_word()},
          {"ledger", ledger.to_json()},
          {"largest", largest_of(*this)},
          {"predicted_for", predicted_for ? ordered_json{{"card", predicted_for->card},
                                                         {"fits", predicted_for->fits},
                                                         {"plan", predicted_for->plan}}
                                          : ordered_json()},
          {"media", media},
          {"decoded", decoded},
          {"missing_files", std::move(missing)},
          {"same_samples", {{"repeated", repeated()}, {"groups", same_samples}}},
          {"same_files", same_files},
          {"repeated_ids", {{"ids", repeated_ids}, {"first", first_repeated_id}}},
          {"evaluation", evaluation_of(*this)},
          {"packs", packs_of(*this)},
          {"shown", shown_of(*this)},
          {"seconds", seconds}};
}

}  // namespace vlmtrain::report
