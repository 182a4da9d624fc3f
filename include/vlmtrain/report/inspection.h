#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/index/content_index.h"
#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/data/order/sample_order.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/data/sample/statistics.h"
#include "vlmtrain/data/sources.h"
#include "vlmtrain/models/media_preview.h"
#include "vlmtrain/report/plan_text.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::report {

/// A source of data.train, with counts of its samples.
struct InspectedSource {
  data::Source source;
  int64_t num_records = 0;
  int64_t num_usable_samples = 0;
  int64_t num_shrunk_samples = 0;         ///< usable samples whose media are shrunk to fit data.max_length
  int64_t num_samples_without_media = 0;  ///< usable samples without image, video or volume
};

/// A source or task that is sampled with a share of its own.
struct InspectedMixtureSource {
  std::string name;
  double share = 0;  ///< of the first step, from 0 to 1
  int64_t num_usable_samples = 0;
  double repeat = 1;  ///< passes over its samples in an epoch
  double epochs = 0;  ///< passes over its samples in the whole run
};

/// The usable samples of a task.
struct InspectedTask {
  std::string name;
  int64_t samples = 0;
  int64_t tokens = 0;
  int64_t label_tokens = 0;
};

/// A candidate for the sample that needs the most memory.
struct LargeSample {
  int64_t index = 0;
  std::string id;
  data::SampleShape shape;
  int64_t predicted_bytes = 0;  ///< peak of a step with this sample only; 0 if not predicted
};

/// The GPU for which memory was predicted, and the plan of the run for it.
struct MemoryPredictionTarget {
  std::string gpu;            ///< description of the GPU
  std::string plan_headline;  ///< format_plan_headline() of the plan
  bool fits = false;          ///< whether the plan fits
};

/// Groups of duplicate samples, by id, or of files with equal content, by path.
template <class Name>
using DuplicateGroups = std::vector<std::vector<Name>>;

/// The content of data.eval, and its overlap with data.train.
struct InspectedEvaluation {
  std::string name;  ///< value of data.eval
  data::Ledger ledger;
  int64_t num_samples_without_media = 0;  ///< samples without image, video or volume
  std::vector<data::MissingFile> missing_files = {};
  /// Pairs (id in data.eval, id in data.train) of equal samples.
  std::vector<std::pair<std::string, std::string>> duplicate_id_pairs = {};
  std::vector<std::string> ids_with_train_media = {};  ///< ids of samples whose media also occur in training
  bool has_subjects = false;                           ///< whether any sample names the subject of its media
  std::vector<std::string> train_subjects = {};  ///< subjects that also occur in training, possibly with other scans
  std::vector<std::string> ids_with_train_subjects = {};  ///< ids of the samples of these subjects
};

/// A sample as training sees it.
struct SamplePreview {
  int64_t index = 0;
  std::string id;
  std::string task;
  std::string problem = {};               ///< reason why there is no preview; empty if there is one
  text::RenderedChat rendered_chat = {};  ///< rendered text with media placeholders, and the spans of the responses
  std::string label_text = {};            ///< the label tokens, decoded
  data::SampleShape shape = {};
  std::optional<data::ShrinkInfo> shrink_info = {};
  std::vector<models::MediaPreview> media_previews = {};
};

/// The result of `vlmtrain inspect`: the training data of a run.
struct Inspection {
  std::string dataset;        ///< data.train
  std::string model;          ///< as the user wrote it
  std::string chat_template;  ///< source of the template
  /// The ledger at the start of a run; if `has_decoded_media`, the ledger at the end of its first
  /// epoch.
  data::Ledger ledger;
  bool stops_training = false;          ///< whether a bad sample stops training
  std::string sample_order_error = {};  ///< reason why the samples cannot be ordered, so that training would not start
  ExitCode exit_code = ExitCode::kSuccess;  ///< of training, if it stops
  int64_t steps = 0;                        ///< of the run
  int64_t global_batch_size = 0;
  double epochs = 0;  ///< of the run, over all sources

  std::vector<InspectedSource> sources = {};
  std::vector<InspectedMixtureSource> mixture_sources = {};  ///< empty if all samples are drawn uniformly
  std::vector<InspectedTask> tasks = {};

  // Histograms over the usable samples; video_frames over the samples with a video only.
  data::Histogram tokens = {}, label_tokens = {}, images = {}, volumes = {}, pixel_rows = {}, video_frames = {};
  bool has_patch_rows = false;  ///< pixel rows are patches of images in native resolution
  bool has_grid_rows = false;   ///< pixel rows are grids of volumes, or of the frames of a series

  std::vector<LargeSample> largest_samples = {};  ///< in decreasing order of predicted memory, or of size
  std::optional<MemoryPredictionTarget> memory_prediction_target = {};

  int64_t num_samples_without_media = 0;  ///< usable samples without image, video or volume
  std::vector<std::string> remarks = {};  ///< sentences about settings without effect

  int64_t num_distinct_media = 0;  ///< images, videos and volumes; equal ones count once
  bool has_decoded_media = false;  ///< all media were decoded; otherwise only their headers were read
  std::vector<data::MissingFile> missing_files = {};
  /// For each missing file, the id of the first sample that names it.
  std::vector<std::string> missing_file_sample_ids = {};
  DuplicateGroups<std::string> duplicate_samples = {};
  int64_t num_repeated_ids = 0;  ///< number of ids that several samples have
  std::string first_repeated_id = {};
  DuplicateGroups<std::string> duplicate_files = {};
  std::optional<InspectedEvaluation> evaluation = {};

  std::optional<data::PackLimits> pack_limits = {};
  data::PackStatistics pack_statistics = {};
  std::vector<std::string> largest_pack_sample_ids = {};  ///< of the first pack with the most tiles

  std::vector<SamplePreview> sample_previews = {};
  double seconds = 0;  ///< duration of the inspection

  /// Returns the number of samples that cannot be used.
  int64_t num_bad_samples() const {
    return ledger.count(data::SampleStatus::kDropped) + ledger.count(data::SampleStatus::kFailed);
  }
  bool is_text_only() const { return num_usable_samples() > 0 && num_samples_without_media == num_usable_samples(); }
  int64_t num_usable_samples() const { return ledger.num_samples() - num_bad_samples(); }
  /// Returns the name of the pixel rows: "tiles", "patches" or "grids".
  const char* pixel_row_name() const { return has_patch_rows ? "patches" : has_grid_rows ? "grids" : "tiles"; }
  /// Returns the family's word for media: "volumes" or "images".
  const char* media_name() const { return has_grid_rows ? "volumes" : "images"; }
  /// Returns "images and videos" or "volumes".
  const char* media_description() const { return has_grid_rows ? "volumes" : "images and videos"; }
  /// Returns the number of samples that repeat an earlier one.
  int64_t count_duplicate_samples() const;

  /// Returns the content of `inspect --json` (docs/how-to/preview-data.md), without pixels.
  nlohmann::ordered_json to_json() const;
};

/// Returns the result in one sentence without line break: "3,064 samples, all of which can be
/// used".
std::string format_inspection_headline(const Inspection& inspection);

/// Returns the inspection as text for a terminal. Lists are shortened to their first entries. Ends
/// with a line break.
std::string format_inspection(const Inspection& inspection, const TextStyle& style);

/// Returns the rendered text with `open` and `close` around the responses that are trained on. After
/// `close`, writes "×0.5" for a response with the weight 0.5. `escape`, if not null, is applied to each piece of the
/// text.
std::string highlight_answers(const text::RenderedChat& chat, std::string_view open = "⟦", std::string_view close = "⟧",
                              std::string (*escape)(std::string_view) = nullptr);

/// The end of the page's title, after the name of the data set. Identifies the page in a file.
inline constexpr const char* kInspectionTitleSuffix = ": what is trained on</title>";

/// Returns the inspection as one HTML file without scripts and external resources. It contains the
/// media of the previewed samples.
std::string render_inspection_page(const Inspection& inspection);

}  // namespace vlmtrain::report
