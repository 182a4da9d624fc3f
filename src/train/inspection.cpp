#include "vlmtrain/train/inspection.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>

#include "train/data_check.h"
#include "train/inspected_order.h"
#include "train/largest_samples.h"
#include "train/shown_samples.h"
#include "train/without_effect.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/number_behind.h"
#include "vlmtrain/data/decoding.h"
#include "vlmtrain/data/known_problems.h"
#include "vlmtrain/data/media_census.h"
#include "vlmtrain/data/media_notices.h"
#include "vlmtrain/data/tasks.h"
#include "vlmtrain/memory/processor.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/mask_families.h"
#include "vlmtrain/report/progress.h"
#include "vlmtrain/train/planning.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::train {

namespace {

constexpr int64_t kLargest = 10;

class InspectionOfData {
 public:
  InspectionOfData(const Config& config, const InspectionRequest& request)
      : start_(std::chrono::steady_clock::now()),
        config_(config),
        request_(request),
        folder_(config.output.dir),
        records_(training_records(config)),
        processor_(models::load_processor(config.model.path, processor_settings(config.data, config.model.adapter))),
        workers_(std::max<int64_t>(config.data.num_workers, memory::default_threads())),
        outlines_(
            look_to_inspect(*records_, *processor_, config, config.data.train.name(), cache_of("data_check.jsonl"))),
        result_{.dataset = config.data.train.name(),
                .model = request.model,
                .chat_template = processor_->chat_template().description(),
                .ledger = data::Ledger(config.data.train.name(), records_->size()),
                .global_batch_size = config.training.global_batch_size} {}

  report::Inspection all() {
    const auto asked = places_asked_for();
    make_order();
    index_contents();
    result_.decoded = request_.decode;
    if (request_.decode) {
      decode(*records_, kTrained, outlines_);
      check_lanes();
    }
    enter_ledger(outlines_, result_.ledger);
    if (order_) enter_order(*order_, result_.ledger, config_, result_);
    if (order_ && order_->settings().packs) count_packs();
    count_sources();
    count_samples();
    find_same();
    rank_largest();
    if (evaluated_) inspect_evaluated();
    show(asked);
    result_.stops_run = !result_.no_order.empty() || result_.ledger.count(data::SampleStatus::kFailed) > 0;
    if (result_.stops_run && result_.ends_with == ExitCode::kDone) result_.ends_with = ExitCode::kBadData;
    result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    return std::move(result_);
  }

 private:
  std::filesystem::path cache_of(const char* name) const {
    return folder_.empty() ? std::filesystem::path() : folder_ / name;
  }

  /// Of the records that are named: by an id, or by a place from 1.
  std::vector<int64_t> places_asked_for() const {
    std::vector<int64_t> places;
    for (const std::string& name : request_.records) {
      const auto by_id = place_of_id(name);
      const auto place = number_behind("", name);
      if (by_id) {
        places.push_back(*by_id);
      } else if (place && *place >= 1 && *place <= records_->size()) {
        places.push_back(*place - 1);
      } else {
        throw usage_error("--record {}: {} has no such id, and its records are 1 to {}", name, result_.dataset,
                          records_->size());
      }
    }
    return places;
  }

  std::optional<int64_t> place_of_id(std::string_view id) const {
    for (int64_t index = 0; index < outlines_.ids.size(); ++index) {
      if (outlines_.ids[index] == id) return index;
    }
    return std::nullopt;
  }

  void make_order() {
    if (outlines_.usable() == 0) {
      result_.no_order = kNoneUsable;
      return;
    }
    try {
      auto order = order_of(*records_, config_, outlines_);
      // What is larger than a pack has become a problem by now.
      if (outlines_.usable() == 0) {
        result_.no_order = kNoneUsable;
      } else {
        order_.emplace(std::move(order));
      }
    } catch (const UserError& error) {
      result_.no_order = outlines_.usable() == 0 ? kNoneUsable : error.what();
      if (outlines_.usable() > 0) result_.ends_with = error.code();
    }
  }

  /// A run stops once a source or task has lost all its samples.
  void check_lanes() {
    const auto is_usable = [this](int64_t sample) { return outlines_.shapes.has(sample); };
    for (int64_t lane = 0; order_ && lane < order_->lanes(); ++lane) {
      const data::Lane& own = order_->lane(lane);
      if (std::ranges::any_of(own.samples, is_usable)) continue;
      result_.no_order = order_->lanes() == 1
                             ? kNoneUsable
                             : fmt::format("{}: none of its {} samples can be used", own.name, own.samples.size());
      order_.reset();
    }
  }

  void index_contents() {
    {
      report::CountProgress progress("reading the records", records_->size(), is_quiet());
      index_.add(*records_, workers_, [&progress](int64_t done) { progress.show(done); });
    }
    if (!config_.data.eval.empty()) {
      evaluated_ = evaluation_records(config_);
      index_.add(*evaluated_, workers_);
    }
    index_.find_same(workers_);
  }

  static bool is_quiet() { return !spdlog::should_log(spdlog::level::info); }

  /// Adds what decoding shows to what headers show.
  void decode(const io::Records& records, size_t set, data::Outlines& outlines) const {
    std::optional<report::CountProgress> progress;
    int64_t counted = -1;
    const auto show_progress = [&](int64_t done, int64_t all) {
      if (std::exchange(counted, all) != all) {
        progress.reset();
        progress.emplace("decoding", all, is_quiet());
      }
      progress->show(done);
    };
    auto problems =
        data::decode_all(records, *processor_, outlines, index_, set, config_.data.num_workers, show_progress);
    for (auto& [index, problem] : problems) {
      outlines.shapes.remove(index);
      outlines.shrunk.erase(index);
      outlines.problems.emplace(index, std::move(problem));
    }
  }

  void enter_ledger(const data::Outlines& outlines, data::Ledger& ledger) const {
    data::enter_problems(outlines.problems, outlines.ids, config_.data.on_bad_sample, ledger);
    for (const auto& [index, shrunk] : outlines.shrunk) {
      ledger.mark_shrunk(index, std::string(outlines.ids[index]), shrunk);
    }
    ledger.enter_notices(outlines.notices);
  }

  void count_packs() {
    result_.pack_limits = order_->settings().packs;
    result_.packs = data::census_of(data::first_packs(*order_), order_->sizes(), *result_.pack_limits);
    for (const int64_t sample : result_.packs.of_most_tiles) {
      result_.pack_of_most_tiles.emplace_back(outlines_.ids[sample]);
    }
  }

  void count_sources() {
    for (size_t part = 0; part < records_->parts().size(); ++part) {
      const auto [begin, end] = records_->range_of(part);
      const auto within = [first = begin, behind = end](const auto& by_index) {
        return std::distance(by_index.lower_bound(first), by_index.lower_bound(behind));
      };
      result_.sources.push_back({.source = records_->parts()[part].source,
                                 .records = end - begin,
                                 .usable = end - begin - within(outlines_.problems),
                                 .shrunk = within(outlines_.shrunk),
                                 .without_media = data::media_census(outlines_.shapes, begin, end).without_media});
    }
    const auto census = data::media_census(outlines_.shapes);
    result_.without_media = census.without_media;
    result_.remarks = settings_without_effect(config_, census, models::draws_masks(config_.model.path));
  }

  void count_samples() {
    std::vector<int64_t> tokens, label_tokens, images, volumes, rows, frames;
    for (auto* numbers : {&tokens, &label_tokens, &images, &volumes, &rows, &frames})
      numbers->reserve(static_cast<size_t>(outlines_.shapes.known()));
    std::map<std::string, report::InspectedTask> tasks;
    for (int64_t index = 0; index < outlines_.shapes.size(); ++index) {
      const auto shape = outlines_.shapes[index];
      if (!shape) continue;
      tokens.push_back(shape->tokens);
      label_tokens.push_back(shape->label_tokens);
      images.push_back(shape->images - shape->videos - shape->volumes);
      volumes.push_back(shape->volumes);
      rows.push_back(shape->pixel_rows);
      if (shape->videos > 0) frames.push_back(shape->video_frames);
      result_.has_patches = result_.has_patches || !shape->grids.empty();
      result_.has_grids = result_.has_grids || shape->row.depth > 0;
      report::InspectedTask& task = tasks[data::name_of_task(outlines_.tasks[index])];
      ++task.samples;
      task.tokens += shape->tokens;
      task.label_tokens += shape->label_tokens;
    }
    for (auto& [name, task] : tasks) {
      task.name = name;
      result_.tasks.push_back(std::move(task));
    }
    result_.tokens = data::histogram_of(std::move(tokens));
    result_.label_tokens = data::histogram_of(std::move(label_tokens));
    result_.images = data::histogram_of(std::move(images));
    result_.volumes = data::histogram_of(std::move(volumes));
    result_.pixel_rows = data::histogram_of(std::move(rows));
    result_.video_frames = data::histogram_of(std::move(frames));
  }

  void find_repeated_ids() {
    const TextColumn& ids = outlines_.ids;
    std::vector<int64_t> by_id(static_cast<size_t>(ids.size()));
    std::iota(by_id.begin(), by_id.end(), int64_t{0});
    std::ranges::sort(by_id, [&](int64_t one, int64_t other) {
      return ids[one] != ids[other] ? ids[one] < ids[other] : one < other;
    });
    int64_t first = ids.size();
    for (size_t i = 0; i + 1 < by_id.size(); ++i) {
      const bool is_repeated = !ids[by_id[i]].empty() && ids[by_id[i]] == ids[by_id[i + 1]];
      if (!is_repeated || (i > 0 && ids[by_id[i - 1]] == ids[by_id[i]])) continue;
      ++result_.repeated_ids;
      first = std::min(first, by_id[i]);
    }
    if (result_.repeated_ids > 0) result_.first_repeated_id = ids[first];
  }

  void find_same() {
    find_repeated_ids();
    result_.media = index_.media();
    result_.missing_files = index_.missing(kTrained);
    for (const auto& file : result_.missing_files) {
      result_.missing_in.emplace_back(outlines_.ids[file.first]);
    }
    for (const auto& group : index_.same_records(kTrained)) {
      auto& ids = result_.same_samples.emplace_back();
      ids.reserve(group.size());
      for (const int64_t index : group) ids.emplace_back(outlines_.ids[index]);
    }
    result_.same_files = index_.same_files();
  }

  void rank_largest() {
    result_.largest = largest_samples(outlines_, kLargest);
    if (!request_.card || !order_ || result_.largest.empty()) return;
    result_.predicted_for =
        predict_memory(outlines_, *order_, config_, request_.model, *request_.card, result_.largest);
  }

  void inspect_evaluated() {
    auto outlines = look_to_inspect(*evaluated_, *processor_, config_, config_.data.eval, cache_of("eval_check.jsonl"));
    if (request_.decode) decode(*evaluated_, kEvaluated, outlines);
    report::InspectedEvaluation found{.name = config_.data.eval,
                                      .ledger = data::Ledger(config_.data.eval, evaluated_->size())};
    enter_ledger(outlines, found.ledger);
    found.without_media = data::media_census(outlines.shapes).without_media;
    found.missing_files = index_.missing(kEvaluated);
    const auto id_of = [&](int64_t index) { return std::string(outlines.ids[index]); };
    for (const auto& [index, trained] : index_.also_in(kEvaluated, kTrained)) {
      found.also_trained.emplace_back(id_of(index), outlines_.ids[trained]);
    }
    for (const int64_t index : index_.with_media_of(kEvaluated, kTrained)) {
      found.with_trained_media.push_back(id_of(index));
    }
    const auto shared = index_.with_subjects_of(kEvaluated, kTrained);
    found.names_subjects = index_.names_subjects(kEvaluated);
    found.trained_subjects = shared.subjects;
    for (const int64_t index : shared.records) found.with_trained_subjects.push_back(id_of(index));
    result_.evaluation = std::move(found);
  }

  void show(const std::vector<int64_t>& asked) {
    std::vector<int64_t> places = asked;
    if (order_) {
      const auto drawn = drawn_first(*order_, outlines_.problems, request_.samples);
      places.insert(places.end(), drawn.begin(), drawn.end());
    }
    std::set<int64_t> shown;
    for (const int64_t index : places) {
      if (shown.insert(index).second) result_.shown.push_back(shown_sample(*records_, *processor_, index));
    }
  }

  static constexpr const char* kNoneUsable = "none of the samples can be used";
  static constexpr size_t kTrained = 0, kEvaluated = 1;  // in index_

  const data::CollectedNotices notices_;  // of the media of all samples; reported at the end
  const std::chrono::steady_clock::time_point start_;
  const Config& config_;
  const InspectionRequest& request_;
  const std::filesystem::path folder_;
  std::shared_ptr<const data::DataSet> records_;
  std::unique_ptr<models::Processor> processor_;
  const int64_t workers_;
  data::Outlines outlines_;
  report::Inspection result_;
  std::optional<data::DrawOrder> order_;
  std::shared_ptr<const io::Records> evaluated_;
  data::ContentIndex index_;
};

}  // namespace

report::Inspection inspect_data(const Config& config, const InspectionRequest& request) {
  return InspectionOfData(config, request).all();
}

}  // namespace vlmtrain::train
