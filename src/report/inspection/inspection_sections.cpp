#include "report/inspection/inspection_sections.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "report/format/html.h"
#include "report/plan/plan_format.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::report {

namespace {

using Names = std::vector<std::string>;

std::string to_cell(int64_t number) {
  return format_with_commas(number);
}
std::string to_cell(std::string text) {
  return text;
}

/// Adds a row of texts and numbers.
template <class... Cells>
void add_row(Table& table, const Cells&... cells) {
  table.rows.push_back({{to_cell(cells)...}});
}

std::string join(const Names& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Returns "575 steps of 16 samples, 3.0 epochs".
std::string format_training_length(const Inspection& inspection) {
  if (!inspection.sample_order_error.empty()) return "none: " + inspection.sample_order_error;
  std::string text = fmt::format("{} of {}", pluralize(inspection.steps, "step"),
                                 pluralize(inspection.global_batch_size, inspection.pack_limits ? "pack" : "sample"));
  if (inspection.epochs > 0)
    text += fmt::format(", {:.3g} {}", inspection.epochs, inspection.epochs == 1 ? "epoch" : "epochs");
  return text;
}

/// Returns "3,064 samples, 3,060 of which can be used".
std::string format_usable_samples(const data::Ledger& ledger) {
  const int64_t num_bad_samples =
      ledger.count(data::SampleStatus::kDropped) + ledger.count(data::SampleStatus::kFailed);
  return fmt::format("{}, {} of which can be used", pluralize(ledger.num_samples(), "sample"),
                     num_bad_samples == 0 ? "all"
                     : num_bad_samples == ledger.num_samples()
                         ? "none"
                         : format_with_commas(ledger.num_samples() - num_bad_samples));
}

/// Returns the handling of bad samples: "4 would stop training", "3 are dropped".
std::string format_bad_samples(const Inspection& inspection) {
  const int64_t num_failed = inspection.ledger.count(data::SampleStatus::kFailed);
  const int64_t num_dropped = inspection.ledger.count(data::SampleStatus::kDropped);
  if (num_failed == 0)
    return num_dropped == 1 ? "1 is dropped" : fmt::format("{} are dropped", format_with_commas(num_dropped));
  std::string text =
      fmt::format("{} would stop training ({}=fail)", format_with_commas(num_failed), keys::data::kOnBadSample);
  return num_dropped > 0 ? text + fmt::format(", {} are dropped", format_with_commas(num_dropped)) : text;
}

/// Returns "weight 2, task vqa" or "repeated 0.5 times"; empty without options.
std::string format_source_options(const data::Source& source) {
  Names options;
  if (source.weight) options.push_back(fmt::format("weight {:g}", *source.weight));
  if (source.repeat) options.push_back(fmt::format("repeated {:g} times", *source.repeat));
  if (!source.task.empty()) options.push_back("task " + source.task);
  return join(options);
}

/// Returns "3 images, 12 tiles", "1 video of 16 frames, 96 patches" or "2 volumes of 96x96x96".
std::string format_media(const data::SampleShape& shape, const Inspection& inspection) {
  if (shape.num_media() == 0) return inspection.has_grid_rows ? "no volume" : "no image";
  if (inspection.has_grid_rows) return data::describe_media(shape);
  const std::string rows = inspection.has_patch_rows ? fmt::format("{} patches", format_with_commas(shape.pixel_rows))
                                                     : pluralize(shape.pixel_rows, "tile");
  return fmt::format("{}, {}", data::describe_media(shape), rows);
}

/// Returns "12.0 million pixels".
std::string format_pixels(int64_t pixels) {
  constexpr double kMillion = 1e6;
  const double millions = static_cast<double>(pixels) / kMillion;
  return millions >= 0.1 ? fmt::format("{:.1f} million pixels", millions)
                         : fmt::format("{} pixels", format_with_commas(pixels));
}

/// A builder of the sections. Each add_ function adds one if there is something to report.
class SectionBuilder {
 public:
  explicit SectionBuilder(const Inspection& inspection)
      : inspection_(inspection), ledger_(inspection.ledger.to_json()) {}

  std::vector<Section> build() {
    add_run();
    add_sources();
    add_histograms();
    add_packs();
    add_bad_samples();
    add_notices("Notices", inspection_.ledger);
    if (!inspection_.remarks.empty())
      sections_.push_back({.title = "Settings without effect", .notes = inspection_.remarks});
    add_missing_files();
    add_shrunk_samples();
    add_largest_samples();
    add_duplicates();
    add_evaluation();
    for (const auto& sample : inspection_.sample_previews) add_sample_preview(sample);
    return std::move(sections_);
  }

 private:
  void add_table(const std::string& title, Table table, Names notes = {}) {
    if (!table.rows.empty())
      sections_.push_back({.title = title, .notes = std::move(notes), .tables = {std::move(table)}});
  }

  void add_run() {
    const std::string media = fmt::format(
        "{} different {}, {}", format_with_commas(inspection_.num_distinct_media), inspection_.media_description(),
        inspection_.has_decoded_media ? "all decoded" : "only the headers were read; --decode decodes all");
    add_table("Run", {.alignment = "ll",
                      .rows = {{{"data", inspection_.dataset}},
                               {{"model", inspection_.model}},
                               {{"chat", inspection_.chat_template}},
                               {{"run", format_training_length(inspection_)}},
                               {{"media", media}},
                               {{"inspected in", format_seconds(inspection_.seconds)}}}});
  }

  void add_sources() {
    Table sources{.headers = {"source", "sampling", "samples", "usable", "shrunk", "no media"}, .alignment = "ll"};
    for (const auto& source : inspection_.sources) {
      add_row(sources, source.source.path, format_source_options(source.source), source.num_records,
              source.num_usable_samples, source.num_shrunk_samples, source.num_samples_without_media);
    }
    add_table("Sources", std::move(sources));
    Table mixture{.headers = {"source or task", "share", "usable", "epochs"}};
    for (const auto& source : inspection_.mixture_sources) {
      add_row(mixture, source.name, fmt::format("{:.1f} %", 100 * source.share), source.num_usable_samples,
              fmt::format("{:.3g}", source.epochs));
    }
    add_table("Shares", std::move(mixture));
    if (inspection_.tasks.size() < 2) return;
    Table tasks{.headers = {"task", "samples", "tokens", "label tokens"}};
    for (const auto& task : inspection_.tasks) {
      add_row(tasks, task.name, task.samples, task.tokens, task.label_tokens);
    }
    add_table("Tasks", std::move(tasks));
  }

  void add_histogram(const std::string& name, const char* unit, const data::Histogram& histogram) {
    const std::string range =
        histogram.min == histogram.max
            ? fmt::format("{} each", format_with_commas(histogram.min))
            : fmt::format("{} to {} per {}, median {}, 95 % up to {}", format_with_commas(histogram.min),
                          format_with_commas(histogram.max), unit, format_with_commas(histogram.median),
                          format_with_commas(histogram.percentile_95));
    Table table{.alignment = "r"};
    for (const auto& [first, last, count] : histogram.bins) {
      add_row(table,
              first == last ? format_with_commas(first)
                            : fmt::format("{} - {}", format_with_commas(first), format_with_commas(last)),
              count);
      table.rows.back().bar = count;
    }
    if (table.rows.size() == 1) table.rows.clear();  // the note has it all
    sections_.push_back({.title = fmt::format("{} per {}", name, unit),
                         .notes = {fmt::format("{}; {} in total", range, format_with_commas(histogram.sum))},
                         .tables = {std::move(table)}});
  }

  /// Returns the title of the pixel rows: "Tiles", "Patches" or "Grids".
  const char* pixel_row_title() const {
    return inspection_.has_patch_rows ? "Patches" : inspection_.has_grid_rows ? "Grids" : "Tiles";
  }

  void add_histograms() {
    if (inspection_.tokens.count == 0) return;
    add_histogram("Tokens", "sample", inspection_.tokens);
    add_histogram("Label tokens", "sample", inspection_.label_tokens);
    if (inspection_.images.max > 0) add_histogram("Images", "sample", inspection_.images);
    if (inspection_.volumes.max > 0) add_histogram("Volumes", "sample", inspection_.volumes);
    // Each volume is one grid, except for series.
    if (inspection_.pixel_rows.max > 0 && inspection_.pixel_rows.sum != inspection_.volumes.sum)
      add_histogram(pixel_row_title(), "sample", inspection_.pixel_rows);
    if (inspection_.video_frames.max > 0) add_histogram("Frames of videos", "sample", inspection_.video_frames);
  }

  void add_packs() {
    if (!inspection_.pack_limits) return;
    const auto& packs = inspection_.pack_statistics;
    const auto& limits = *inspection_.pack_limits;
    const char* const media = inspection_.media_name();
    const char* const rows = inspection_.pixel_row_name();
    Table limit_table{.headers = {"limit", "maximum", "used", "packs limited by it"}};
    add_row(limit_table, "tokens", limits.max_tokens, fmt::format("{:.1f} %", 100 * packs.fill.token_fill),
            packs.num_token_limited_packs());
    add_row(limit_table, media, limits.max_media, fmt::format("{:.1f} %", 100 * packs.fill.media_fill),
            packs.num_packs_at_media_limit);
    if (limits.max_tiles) {
      add_row(limit_table, rows, *limits.max_tiles, "", packs.num_packs_at_tile_limit);
    }
    add_table("Packs", std::move(limit_table),
              {fmt::format("{} in the first epoch. The largest pack has {} {}: samples {}.",
                           pluralize(packs.fill.num_packs, "pack"), format_with_commas(packs.fill.max_tiles), rows,
                           join(inspection_.largest_pack_sample_ids))});
    std::vector<int64_t> tokens, images, tiles;
    for (const auto& pack : packs.pack_sizes) {
      tokens.push_back(pack.tokens);
      images.push_back(pack.num_media);
      tiles.push_back(pack.tiles);
    }
    add_histogram("Tokens", "pack", data::make_histogram(std::move(tokens)));
    add_histogram(inspection_.has_grid_rows ? "Volumes" : "Images", "pack", data::make_histogram(std::move(images)));
    add_histogram(pixel_row_title(), "pack", data::make_histogram(std::move(tiles)));
  }

  static Table make_problem_table(const nlohmann::ordered_json& ledger) {
    Table table{.headers = {"sample", "problem"}, .alignment = "ll", .max_terminal_rows = kMaxTerminalEntries};
    for (const auto& problem : ledger["problems"])
      add_row(table, problem["id"].get<std::string>(), problem["message"].get<std::string>());
    return table;
  }

  void add_bad_samples() {
    if (inspection_.num_bad_samples() == 0) return;
    Table reasons{.alignment = "rl"};
    for (const auto& [reason, count] : ledger_["reasons"].items()) add_row(reasons, count.get<int64_t>(), reason);
    sections_.push_back({.title = "Cannot be used: " + format_bad_samples(inspection_),
                         .tables = {std::move(reasons), make_problem_table(ledger_)}});
  }

  void add_notices(const std::string& title, const data::Ledger& ledger) {
    constexpr size_t kMaxTerminalNotices = 20;
    Table table{
        .headers = {"samples", "notice", "example"}, .alignment = "rll", .max_terminal_rows = kMaxTerminalNotices};
    for (const auto& [kind, count] : ledger.notices().kinds()) {
      const std::string hint = data::get_notice_hint(kind);
      add_row(table, count.samples, data::describe_notice(kind) + (hint.empty() ? "" : "; " + hint),
              count.example.empty() ? count.id : fmt::format("{}: {}", count.id, make_excerpt(count.example)));
    }
    const std::string kinds = pluralize(std::ssize(table.rows), "kind");
    add_table(fmt::format("{}: {}", title, kinds), std::move(table));
  }

  void add_missing_files() {
    Table table{.headers = {"file", "reason", "first in", "samples"},
                .alignment = "lll",
                .max_terminal_rows = kMaxTerminalEntries};
    for (size_t i = 0; i < inspection_.missing_files.size(); ++i) {
      const auto& file = inspection_.missing_files[i];
      add_row(table, file.path, file.reason, inspection_.missing_file_sample_ids[i], file.num_records);
    }
    add_table("Missing files: " + format_with_commas(std::ssize(inspection_.missing_files)), std::move(table));
  }

  void add_shrunk_samples() {
    Table table{.headers = {"sample", "tokens", "tokens before", "size", "size before"},
                .max_terminal_rows = kMaxTerminalEntries};
    for (const auto& sample : ledger_["shrunk"]["each"]) {
      add_row(table, sample["id"].get<std::string>(), sample["tokens"][1].get<int64_t>(),
              sample["tokens"][0].get<int64_t>(), format_pixels(sample["pixels"][1]),
              format_pixels(sample["pixels"][0]));
    }
    const std::string samples = pluralize(std::ssize(table.rows), "sample");
    add_table(fmt::format("Shrunk to fit {}: {}", keys::data::kMaxLength, samples), std::move(table));
  }

  void add_largest_samples() {
    const auto& target = inspection_.memory_prediction_target;
    Table table{
        .headers = {"sample", "memory", "tokens", "labels", inspection_.media_name(), inspection_.pixel_row_name()},
        .max_terminal_rows = kMaxTerminalEntries};
    for (const auto& sample : inspection_.largest_samples) {
      add_row(table, sample.id, sample.predicted_bytes > 0 ? format_gigabytes(sample.predicted_bytes) : "",
              sample.shape.tokens, sample.shape.label_tokens, sample.shape.num_media(), sample.shape.pixel_rows);
    }
    const std::string note =
        !target
            ? "Ranked by size: one of these needs the most memory; --gpu NAME or --gpu-gb GB predicts how much."
            : fmt::format(
                  "Memory: a step with that sample alone on {}, with the plan's recomputation and the CUDA context; "
                  "from a dry run on a virtual GPU, not measured. Plan of the run: {}.",
                  target->gpu, target->plan_headline);
    add_table(target ? "Most memory" : "Largest samples", std::move(table), {note});
  }

  void add_duplicate_groups(const std::string& title, const DuplicateGroups<std::string>& groups) {
    Table table{.alignment = "rl", .max_terminal_rows = kMaxTerminalEntries};
    for (const auto& group : groups) add_row(table, std::ssize(group), join(group));
    add_table(title, std::move(table));
  }

  void add_duplicates() {
    add_duplicate_groups(fmt::format("Duplicates: {} the text and images of an earlier one",
                                     inspection_.count_duplicate_samples() == 1
                                         ? "1 sample has"
                                         : format_with_commas(inspection_.count_duplicate_samples()) + " samples have"),
                         inspection_.duplicate_samples);
    add_duplicate_groups(fmt::format("Files with the same content under different names: {}",
                                     pluralize(std::ssize(inspection_.duplicate_files), "group")),
                         inspection_.duplicate_files);
    if (inspection_.num_repeated_ids == 0) return;
    const bool is_single_id = inspection_.num_repeated_ids == 1;
    sections_.push_back(
        {.title = "Repeated ids",
         .notes = {fmt::format(
             "{} {} by several samples{}{}; the ledger distinguishes them by index; --record uses the first",
             pluralize(inspection_.num_repeated_ids, "id"), is_single_id ? "is shared" : "are shared",
             is_single_id ? ", " : ", the first is ", inspection_.first_repeated_id)}});
  }

  void add_evaluation() {
    if (!inspection_.evaluation) return;
    const InspectedEvaluation& evaluation = *inspection_.evaluation;
    Names pairs;
    for (const auto& [id, train_id] : evaluation.duplicate_id_pairs)
      pairs.push_back(fmt::format("{} = {}", id, train_id));
    Table overlap{.alignment = "rll"};
    const auto add = [&](const char* kind, const Names& names) {
      add_row(overlap, std::ssize(names), kind, join(names));
    };
    if (evaluation.num_samples_without_media > 0)
      add_row(overlap, evaluation.num_samples_without_media, "without image, video or volume");
    add("also in the training data, with the same text and images", pairs);
    add(inspection_.has_grid_rows ? "with a volume from the training data"
                                  : "with an image or video from the training data",
        evaluation.ids_with_train_media);
    if (evaluation.has_subjects) {
      // Subjects, such as patients, in both data sets make scores look better than they are.
      add("of a subject in the training data", evaluation.ids_with_train_subjects);
      add("subjects in both", evaluation.train_subjects);
    }
    Section section{.title = fmt::format("Evaluation ({}={}): {}", keys::data::kEval, evaluation.name,
                                         format_usable_samples(evaluation.ledger)),
                    .tables = {std::move(overlap)}};
    if (auto problems = make_problem_table(evaluation.ledger.to_json()); !problems.rows.empty())
      section.tables.push_back(std::move(problems));
    sections_.push_back(std::move(section));
    add_notices(fmt::format("Notices of {}", keys::data::kEval), evaluation.ledger);
  }

  void add_sample_preview(const SamplePreview& sample) {
    Section section{
        .title = fmt::format("Sample {}{}", sample.id, sample.task.empty() ? "" : fmt::format(" ({})", sample.task))};
    if (sample.problem.empty()) {
      section.notes = {
          fmt::format("{} tokens: {} media tokens, {} label tokens (marked); {}",
                      format_with_commas(sample.shape.tokens), format_with_commas(sample.shape.image_tokens),
                      format_with_commas(sample.shape.label_tokens), format_media(sample.shape, inspection_))};
      if (sample.shrink_info) {
        section.notes.back() +=
            fmt::format("; shrunk, it has {} tokens and {}", format_with_commas(sample.shrink_info->tokens),
                        format_pixels(sample.shrink_info->pixels));
      }
      if (!has_explained_marks_) section.terminal_lines = "Label tokens are inside ⟦…⟧.\n";
      has_explained_marks_ = true;
      section.terminal_lines += highlight_answers(sample.rendered_chat);
      section.html =
          fmt::format("<div class=\"sample{}\"><p class=\"chat\">{}</p><div class=\"media\">{}</div></div>\n",
                      sample.media_previews.empty() ? " words" : "",
                      highlight_answers(sample.rendered_chat, "<mark>", "</mark>", escape_html),
                      render_media_previews(sample.media_previews));
    } else {
      section.notes = {sample.problem};
    }
    sections_.push_back(std::move(section));
  }

  const Inspection& inspection_;
  const nlohmann::ordered_json ledger_;
  std::vector<Section> sections_;
  bool has_explained_marks_ = false;  ///< in a terminal; the page colors label tokens
};

}  // namespace

std::string format_inspection_headline(const Inspection& inspection) {
  std::string text = format_usable_samples(inspection.ledger);
  if (inspection.num_bad_samples() > 0) text += fmt::format("; {}", format_bad_samples(inspection));
  if (!inspection.sample_order_error.empty() && inspection.num_usable_samples() > 0)
    text += fmt::format("; {}", inspection.sample_order_error);
  if (inspection.is_text_only()) text += "; none of them has an image, video or volume";
  return text;
}

std::vector<Section> make_inspection_sections(const Inspection& inspection) {
  return SectionBuilder(inspection).build();
}

}  // namespace vlmtrain::report
