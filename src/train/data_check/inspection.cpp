#include "vlmtrain/train/inspection.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>

#include "train/data_check/data_check.h"
#include "train/data_check/inspected_samples.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/data_set.h"
#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/data/index/sample_index.h"
#include "vlmtrain/data/sample/statistics.h"
#include "vlmtrain/memory/cpu_info.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/report/progress.h"
#include "vlmtrain/train/checks.h"
#include "vlmtrain/train/components.h"
#include "vlmtrain/train/planning.h"

namespace vlmtrain::train {

namespace {

/// Number of rows of the table of largest samples, which fits on a screen. Not tuned.
constexpr int64_t kNumLargestSamples = 10;

/// One inspection. Each step fills a part of result_.
class DataInspector {
 public:
  DataInspector(const Config& config, const InspectionRequest& request)
      : start_(std::chrono::steady_clock::now()),
        config_(config),
        request_(request),
        folder_(config.output.dir),
        records_(open_training_records(config)),
        processor_(models::load_processor(config.model.folder(),
                                          make_processor_settings(config.data, config.model.adapter_folder()))),
        workers_(std::max<int64_t>(config.data.num_workers, memory::compute_default_num_threads())),
        sample_index_(check_data_for_inspection(*records_, *processor_, config, config.data.train.name(),
                                                get_cache_path("data_check.jsonl"))),
        result_{.dataset = config.data.train.name(),
                .model = request.model,
                .chat_template = processor_->chat_template().describe(),
                .ledger = data::Ledger(config.data.train.name(), records_->size()),
                .global_batch_size = config.training.global_batch_size} {}

  report::Inspection inspect() {
    const auto requested_indices = find_requested_indices();
    init_sample_order();
    hash_contents();
    result_.has_decoded_media = request_.decode;
    if (request_.decode) {
      decode_all_media(*records_, kTrainSetIndex, sample_index_);
      check_sources_are_usable();
    }
    fill_ledger(sample_index_, result_.ledger);
    if (order_) add_steps_and_epochs(*order_, result_.ledger, config_, result_);
    if (order_ && order_->settings().pack_limits) count_packs();
    fill_source_counts();
    fill_sample_statistics();
    fill_duplicates();
    fill_largest_samples();
    if (eval_records_) inspect_eval_data();
    render_samples(requested_indices);
    result_.stops_training =
        !result_.sample_order_error.empty() || result_.ledger.count(data::SampleStatus::kFailed) > 0;
    if (result_.stops_training && result_.exit_code == ExitCode::kSuccess) result_.exit_code = ExitCode::kBadData;
    result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    return std::move(result_);
  }

 private:
  std::filesystem::path get_cache_path(const char* name) const {
    return folder_.empty() ? std::filesystem::path() : folder_ / name;
  }

  /// Returns the indices of the requested records, named by id or by position from 1.
  std::vector<int64_t> find_requested_indices() const {
    std::vector<int64_t> indices;
    for (const std::string& name : request_.records) {
      const auto index_with_id = find_index_by_id(name);
      const auto number = parse_int_after_prefix("", name);
      if (index_with_id) {
        indices.push_back(*index_with_id);
      } else if (number && *number >= 1 && *number <= records_->size()) {
        indices.push_back(*number - 1);
      } else {
        throw usage_error("--record {}: {} has no record of that id; give an id, or a number from 1 to {}", name,
                          result_.dataset, records_->size());
      }
    }
    return indices;
  }

  std::optional<int64_t> find_index_by_id(std::string_view id) const {
    for (int64_t index = 0; index < sample_index_.ids.size(); ++index) {
      if (sample_index_.ids[index] == id) return index;
    }
    return std::nullopt;
  }

  /// Sets order_, or result_.sample_order_error if a run could not draw samples.
  void init_sample_order() {
    if (sample_index_.num_usable_samples() == 0) {
      result_.sample_order_error = kNoUsableSamplesMessage;
      return;
    }
    try {
      auto order = make_run_sample_order(*records_, config_, sample_index_);
      // make_run_sample_order() has marked samples that are larger than a pack as unusable.
      if (sample_index_.num_usable_samples() == 0) {
        result_.sample_order_error = kNoUsableSamplesMessage;
      } else {
        order_.emplace(std::move(order));
      }
    } catch (const UserError& error) {
      result_.sample_order_error = sample_index_.num_usable_samples() == 0 ? kNoUsableSamplesMessage : error.what();
      if (sample_index_.num_usable_samples() > 0) result_.exit_code = error.code();
    }
  }

  /// Reports sources and tasks without usable samples, for which a run would stop.
  void check_sources_are_usable() {
    const auto is_usable = [this](int64_t sample) { return sample_index_.shapes.is_known(sample); };
    for (int64_t source = 0; order_ && source < order_->num_sources(); ++source) {
      const data::MixtureSource& mixture_source = order_->source(source);
      if (std::ranges::any_of(mixture_source.samples, is_usable)) continue;
      result_.sample_order_error = order_->num_sources() == 1
                                       ? kNoUsableSamplesMessage
                                       : fmt::format("{}: none of its {} samples can be used", mixture_source.name,
                                                     mixture_source.samples.size());
      order_.reset();
    }
  }

  /// Hashes records and media files of both data sets, to find duplicates.
  void hash_contents() {
    {
      report::CountProgressBar progress("reading the records", records_->size(), is_quiet());
      content_index_.add_dataset(*records_, workers_, [&progress](int64_t completed) { progress.show(completed); });
    }
    if (!config_.data.eval.empty()) {
      eval_records_ = open_evaluation_records(config_);
      content_index_.add_dataset(*eval_records_, workers_);
    }
    content_index_.hash_possible_duplicates(workers_);
  }

  static bool is_quiet() { return !spdlog::should_log(spdlog::level::info); }

  /// Decodes all media, and marks samples that cannot be decoded as unusable.
  void decode_all_media(const io::Records& records, size_t dataset_index, data::SampleIndex& sample_index) const {
    std::optional<report::CountProgressBar> progress;
    int64_t previous_total = -1;
    const auto show_progress = [&](int64_t completed, int64_t total) {
      if (std::exchange(previous_total, total) != total) {
        progress.reset();
        progress.emplace("decoding", total, is_quiet());
      }
      progress->show(completed);
    };
    auto problems = data::find_undecodable_samples(records, *processor_, sample_index, content_index_, dataset_index,
                                                   config_.data.num_workers, show_progress);
    for (auto& [index, problem] : problems) {
      sample_index.shapes.mark_unknown(index);
      sample_index.shrink_infos.erase(index);
      sample_index.problems.emplace(index, std::move(problem));
    }
  }

  void fill_ledger(const data::SampleIndex& sample_index, data::Ledger& ledger) const {
    data::add_problems_to_ledger(sample_index.problems, sample_index.ids, config_.data.on_bad_sample, ledger);
    for (const auto& [index, shrunk] : sample_index.shrink_infos) {
      ledger.mark_shrunk(index, std::string(sample_index.ids[index]), shrunk);
    }
    ledger.set_precounted_notices(sample_index.notices);
  }

  void count_packs() {
    result_.pack_limits = order_->settings().pack_limits;
    result_.pack_statistics = data::compute_pack_statistics(data::collect_first_epoch_packs(*order_),
                                                            order_->sample_sizes(), *result_.pack_limits);
    for (const int64_t sample : result_.pack_statistics.largest_pack_sample_indices) {
      result_.largest_pack_sample_ids.emplace_back(sample_index_.ids[sample]);
    }
  }

  void fill_source_counts() {
    for (size_t source_index = 0; source_index < records_->sources().size(); ++source_index) {
      const auto [begin, end] = records_->record_range(source_index);
      const auto count_in_range = [first = begin, last = end](const auto& by_index) {
        return std::distance(by_index.lower_bound(first), by_index.lower_bound(last));
      };
      result_.sources.push_back(
          {.source = records_->sources()[source_index].source,
           .num_records = end - begin,
           .num_usable_samples = end - begin - count_in_range(sample_index_.problems),
           .num_shrunk_samples = count_in_range(sample_index_.shrink_infos),
           .num_samples_without_media =
               data::count_samples_by_media_kind(sample_index_.shapes, begin, end).num_samples_without_media});
    }
    const auto media_counts = data::count_samples_by_media_kind(sample_index_.shapes);
    result_.num_samples_without_media = media_counts.num_samples_without_media;
    result_.remarks = find_unused_settings(config_, media_counts, ModelTraits::read(config_.model.folder()));
  }

  void fill_sample_statistics() {
    std::vector<int64_t> tokens, label_tokens, images, volumes, rows, frames;
    for (auto* numbers : {&tokens, &label_tokens, &images, &volumes, &rows, &frames})
      numbers->reserve(static_cast<size_t>(sample_index_.shapes.num_known_shapes()));
    std::map<std::string, report::InspectedTask> tasks;
    for (int64_t index = 0; index < sample_index_.shapes.size(); ++index) {
      const auto shape = sample_index_.shapes[index];
      if (!shape) continue;
      tokens.push_back(shape->tokens);
      label_tokens.push_back(shape->label_tokens);
      images.push_back(shape->num_images);
      volumes.push_back(shape->num_volumes);
      rows.push_back(shape->pixel_rows);
      if (shape->num_videos > 0) frames.push_back(shape->video_frames);
      result_.has_patch_rows = result_.has_patch_rows || !shape->patch_grids.empty();
      result_.has_grid_rows = result_.has_grid_rows || shape->row.depth > 0;
      report::InspectedTask& task = tasks[data::get_task_display_name(sample_index_.tasks[index])];
      ++task.samples;
      task.tokens += shape->tokens;
      task.label_tokens += shape->label_tokens;
    }
    for (auto& [name, task] : tasks) {
      task.name = name;
      result_.tasks.push_back(std::move(task));
    }
    result_.tokens = data::make_histogram(std::move(tokens));
    result_.label_tokens = data::make_histogram(std::move(label_tokens));
    result_.images = data::make_histogram(std::move(images));
    result_.volumes = data::make_histogram(std::move(volumes));
    result_.pixel_rows = data::make_histogram(std::move(rows));
    result_.video_frames = data::make_histogram(std::move(frames));
  }

  void fill_duplicate_ids() {
    const TextColumn& ids = sample_index_.ids;
    std::vector<int64_t> sorted_indices(static_cast<size_t>(ids.size()));
    std::iota(sorted_indices.begin(), sorted_indices.end(), int64_t{0});
    std::ranges::sort(sorted_indices, [&](int64_t a, int64_t b) { return ids[a] != ids[b] ? ids[a] < ids[b] : a < b; });
    int64_t first = ids.size();
    for (size_t i = 0; i + 1 < sorted_indices.size(); ++i) {
      const bool is_repeated_id =
          !ids[sorted_indices[i]].empty() && ids[sorted_indices[i]] == ids[sorted_indices[i + 1]];
      if (!is_repeated_id || (i > 0 && ids[sorted_indices[i - 1]] == ids[sorted_indices[i]])) continue;
      ++result_.num_repeated_ids;
      first = std::min(first, sorted_indices[i]);
    }
    if (result_.num_repeated_ids > 0) result_.first_repeated_id = ids[first];
  }

  void fill_duplicates() {
    fill_duplicate_ids();
    result_.num_distinct_media = content_index_.num_distinct_media();
    result_.missing_files = content_index_.find_missing_files(kTrainSetIndex);
    for (const auto& file : result_.missing_files) {
      result_.missing_file_sample_ids.emplace_back(sample_index_.ids[file.first_record_index]);
    }
    for (const auto& group : content_index_.find_duplicate_records(kTrainSetIndex)) {
      auto& ids = result_.duplicate_samples.emplace_back();
      ids.reserve(group.size());
      for (const int64_t index : group) ids.emplace_back(sample_index_.ids[index]);
    }
    result_.duplicate_files = content_index_.find_duplicate_files();
  }

  void fill_largest_samples() {
    result_.largest_samples = find_largest_samples(sample_index_, kNumLargestSamples);
    if (!request_.target || !order_ || result_.largest_samples.empty()) return;
    result_.memory_prediction_target =
        predict_memory(sample_index_, *order_, config_, request_.model, *request_.target, result_.largest_samples);
  }

  void inspect_eval_data() {
    auto sample_index = check_data_for_inspection(*eval_records_, *processor_, config_, config_.data.eval,
                                                  get_cache_path("eval_check.jsonl"));
    if (request_.decode) decode_all_media(*eval_records_, kEvalSetIndex, sample_index);
    report::InspectedEvaluation evaluation{.name = config_.data.eval,
                                           .ledger = data::Ledger(config_.data.eval, eval_records_->size())};
    fill_ledger(sample_index, evaluation.ledger);
    evaluation.num_samples_without_media =
        data::count_samples_by_media_kind(sample_index.shapes).num_samples_without_media;
    evaluation.missing_files = content_index_.find_missing_files(kEvalSetIndex);
    const auto get_id = [&](int64_t index) { return std::string(sample_index.ids[index]); };
    for (const auto& [index, train_index] : content_index_.find_shared_records(kEvalSetIndex, kTrainSetIndex)) {
      evaluation.duplicate_id_pairs.emplace_back(get_id(index), sample_index_.ids[train_index]);
    }
    for (const int64_t index : content_index_.find_records_sharing_media(kEvalSetIndex, kTrainSetIndex)) {
      evaluation.ids_with_train_media.push_back(get_id(index));
    }
    const auto shared_subjects = content_index_.find_shared_subjects(kEvalSetIndex, kTrainSetIndex);
    evaluation.has_subjects = content_index_.has_subjects(kEvalSetIndex);
    evaluation.train_subjects = shared_subjects.subject_names;
    for (const int64_t index : shared_subjects.record_indices)
      evaluation.ids_with_train_subjects.push_back(get_id(index));
    result_.evaluation = std::move(evaluation);
  }

  void render_samples(const std::vector<int64_t>& requested_indices) {
    std::vector<int64_t> indices = requested_indices;
    if (order_) {
      const auto first_sample_indices = find_first_sample_indices(*order_, sample_index_.problems, request_.samples);
      indices.insert(indices.end(), first_sample_indices.begin(), first_sample_indices.end());
    }
    std::set<int64_t> rendered_indices;
    for (const int64_t index : indices) {
      if (rendered_indices.insert(index).second)
        result_.sample_previews.push_back(make_sample_preview(*records_, *processor_, index));
    }
  }

  static constexpr const char* kNoUsableSamplesMessage = "none of the samples can be used";
  static constexpr size_t kTrainSetIndex = 0, kEvalSetIndex = 1;  // of the data sets in content_index_

  const data::NoticeCollector notices_;  // logs the notices of all media when it is destroyed
  const std::chrono::steady_clock::time_point start_;
  const Config& config_;
  const InspectionRequest& request_;
  const std::filesystem::path folder_;
  std::shared_ptr<const data::DataSet> records_;
  std::unique_ptr<models::Processor> processor_;
  const int64_t workers_;
  data::SampleIndex sample_index_;
  report::Inspection result_;
  std::optional<data::SampleOrder> order_;
  std::shared_ptr<const io::Records> eval_records_;
  data::ContentIndex content_index_;
};

}  // namespace

report::Inspection inspect_data(const Config& config, const InspectionRequest& request) {
  return DataInspector(config, request).inspect();
}

}  // namespace vlmtrain::train
