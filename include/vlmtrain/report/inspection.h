#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/content_index.h"
#include "vlmtrain/data/histogram.h"
#include "vlmtrain/data/ledger.h"
#include "vlmtrain/data/pack_census.h"
#include "vlmtrain/data/shape.h"
#include "vlmtrain/data/sources.h"
#include "vlmtrain/models/seen_picture.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::report {

/// One of the things that data.train names.
struct InspectedSource {
  data::Source source;
  int64_t num_records = 0;
  int64_t num_usable = 0;
  int64_t shrunk = 0;
  int64_t without_media = 0;  ///< of the usable ones
};

/// What is drawn by a share of its own: a source, or a task.
struct InspectedMixtureSource {
  std::string name;
  double share = 0;  ///< of the first step, of 1
  int64_t num_usable = 0;
  double repeat = 1;
  double epochs = 0;  ///< of its own, in the whole run
};

struct InspectedTask {
  std::string name;
  int64_t samples = 0;
  int64_t tokens = 0;
  int64_t label_tokens = 0;
};

/// A sample that may need most memory.
struct LargeSample {
  int64_t index = 0;
  std::string id;
  data::SampleShape shape;
  int64_t predicted_bytes = 0;  ///< of a step of it alone; 0: not predicted
};

/// For which card memory was predicted.
struct PredictionTarget {
  std::string gpu;
  std::string plan_headline;  ///< its headline
  bool fits = false;
};

/// Samples, or files, that are the same.
template <class Name>
using DuplicateGroups = std::vector<std::vector<Name>>;

/// What data.eval holds, and what of it is trained on.
struct InspectedEvaluation {
  std::string name;
  data::Ledger ledger;
  int64_t without_media = 0;  ///< samples that have no image, video or volume
  std::vector<data::MissingFile> missing_files = {};
  std::vector<std::pair<std::string, std::string>> train_duplicates =
      {};                                                 ///< ids of equal samples, in data.eval and in data.train
  std::vector<std::string> ids_with_train_media = {};     ///< ids of samples with a medium that training has too
  bool has_subjects = false;                              ///< whether a sample says whom its media show
  std::vector<std::string> train_subjects = {};           ///< that training has too, in other scans perhaps
  std::vector<std::string> ids_with_train_subjects = {};  ///< ids of their samples
};

/// A sample as it is trained on.
struct SamplePreview {
  int64_t index = 0;
  std::string id;
  std::string task;
  std::string problem = {};      ///< why there is nothing to show
  text::RenderedChat chat = {};  ///< before media become tokens, with what is learnt
  std::string label_text = {};   ///< the label tokens, as text again
  data::SampleShape shape = {};
  std::optional<data::ShrinkInfo> shrunk = {};
  std::vector<models::MediaPreview> media_previews = {};
};

/// What `vlmtrain inspect` found out about the data of a run.
struct Inspection {
  std::string dataset;        ///< data.train
  std::string model;          ///< as the user named it
  std::string chat_template;  ///< where it is from
  /// As a run begins with it; with `decoded`, as its first epoch leaves it.
  data::Ledger ledger;
  bool stops_training = false;              ///< training ends before or at a bad sample
  std::string order_error = {};             ///< why training would not begin otherwise
  ExitCode exit_code = ExitCode::kSuccess;  ///< what training would, if it stops
  int64_t steps = 0;                        ///< of the run
  int64_t global_batch_size = 0;
  double epochs = 0;  ///< of all sources, in the run

  std::vector<InspectedSource> sources = {};
  std::vector<InspectedMixtureSource> mixture_sources = {};  ///< none where all samples are drawn alike
  std::vector<InspectedTask> tasks = {};

  // Of the samples that can be used; frames of those with a video.
  data::Histogram tokens = {}, label_tokens = {}, images = {}, volumes = {}, pixel_rows = {}, video_frames = {};
  bool has_patches = false;  ///< pixel rows are patches of native resolution
  bool has_grids = false;    ///< they are the grids of volumes, of a series one for each frame; else tiles

  std::vector<LargeSample> largest_samples = {};  ///< that need most first
  std::optional<PredictionTarget> prediction_target = {};

  int64_t without_media = 0;              ///< usable samples that have no image, video or volume
  std::vector<std::string> remarks = {};  ///< settings without effect

  int64_t media = 0;     ///< different pictures, videos and volumes
  bool decoded = false;  ///< all of them, else only their headers were read
  std::vector<data::MissingFile> missing_files = {};
  std::vector<std::string> missing_file_sample_ids = {};  ///< ids of the first samples that name them
  DuplicateGroups<std::string> duplicate_samples = {};
  int64_t repeated_ids = 0;  ///< ids that several samples have
  std::string first_repeated_id = {};
  DuplicateGroups<std::string> duplicate_files = {};
  std::optional<InspectedEvaluation> evaluation = {};

  std::optional<data::PackLimits> pack_limits = {};
  data::PackStatistics packs = {};
  std::vector<std::string> largest_pack_ids = {};  ///< ids of its samples

  std::vector<SamplePreview> shown_samples = {};
  double seconds = 0;

  int64_t num_bad() const {
    return ledger.count(data::SampleStatus::kDropped) + ledger.count(data::SampleStatus::kFailed);
  }
  bool has_no_media() const { return num_usable() > 0 && without_media == num_usable(); }
  int64_t num_usable() const { return ledger.samples() - num_bad(); }
  /// "tiles", "patches" or "grids".
  const char* pixel_row_name() const { return has_patches ? "patches" : has_grids ? "grids" : "tiles"; }
  /// What the family's media are called: "volumes" or "images".
  const char* media_name() const { return has_grids ? "volumes" : "images"; }
  /// "pictures and videos".
  const char* media_description() const { return has_grids ? "volumes" : "pictures and videos"; }
  /// Samples that repeat an earlier one.
  int64_t num_duplicates() const;

  /// `inspect --json` (docs/inspect.md), without the pictures.
  nlohmann::ordered_json to_json() const;
};

}  // namespace vlmtrain::report
