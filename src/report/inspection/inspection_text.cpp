#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "report/format/text_layout.h"
#include "report/inspection/inspection_format.h"
#include "report/plan/plan_format.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/report/inspection.h"

namespace vlmtrain::report {

namespace {

/// Entries that a list shows in the terminal; --json and --html show all.
constexpr size_t kMaxListedEntries = 5;
constexpr size_t kMaxListedNotices = 20;
/// Characters of a listed message, so that it takes a few lines. Not tuned.
constexpr size_t kMaxMessageCharacters = 300;
/// Tables need 64 columns. Text wider than 100 is hard to read.
constexpr int kMinInspectionColumns = 64;
constexpr int kMaxInspectionColumns = 100;
/// Characters of a name or path in a table.
constexpr size_t kMaxNameCharacters = 32;

/// Returns the beginning of the text in at most kMaxNameCharacters characters.
std::string shorten_name(const std::string& text) {
  return make_excerpt(text, kMaxNameCharacters - 1);
}

/// Returns the end of the path in at most kMaxNameCharacters characters.
std::string shorten_path(const std::string& path) {
  const std::string text = to_printable(path);
  size_t begin = text.size();
  for (size_t characters = 1; begin > 0 && characters < kMaxNameCharacters; ++characters) {
    do --begin;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80);
  }
  return begin == 0 ? text : fmt::format("…{}", text.substr(begin));
}

/// Pads the text with spaces to `columns` columns, regardless of its number of bytes.
std::string pad_text(const std::string& text, int columns) {
  return text + std::string(static_cast<size_t>(std::max(0, columns - count_columns(text))), ' ');
}

/// A builder of the text. Single use: text() moves the result out.
class InspectionTextBuilder {
 public:
  InspectionTextBuilder(const Inspection& inspection, const TextStyle& style)
      : inspection_(inspection),
        style_(style),
        columns_(std::clamp(style.width, kMinInspectionColumns, kMaxInspectionColumns)) {}

  std::string text() {
    text_ = colorize(inspection_.stops_training ? "1;31" : "1;32",
                     wrap_text("", format_inspection_headline(inspection_), columns_));
    text_ += "\n";
    add_fact("data", inspection_.dataset);
    add_fact("model", inspection_.model);
    add_fact("chat", inspection_.chat_template);
    add_fact("run", format_training_length(inspection_));
    add_sources();
    add_mixture();
    add_tasks();
    for (const auto& histogram : list_histograms(inspection_)) add_histogram(histogram);
    add_packs();
    add_bad_samples();
    add_notices(inspection_.ledger, "Notices");
    add_remarks();
    add_missing_files();
    add_shrunk_samples();
    add_largest_samples();
    add_duplicates();
    add_evaluation();
    add_sample_previews();
    text_ += "\n";
    add_faint_text("", fmt::format("Found in {}; {}.", format_seconds(inspection_.seconds),
                                   inspection_.has_decoded_media
                                       ? fmt::format("all {} were decoded", inspection_.media_description())
                                       : fmt::format("only the headers of {} were read, --decode decodes all",
                                                     inspection_.media_description())));
    return std::move(text_);
  }

 private:
  /// Returns `text` with ANSI color codes, which end before a final line break. `color`: parameters
  /// of Select Graphic Rendition, such as "1" for bold, "2" for faint, "1;31" for bold red.
  std::string colorize(const char* color, const std::string& text) const {
    if (!style_.color) return text;
    const bool has_line_break = text.ends_with('\n');
    return fmt::format("\x1b[{}m{}\x1b[0m{}", color, text.substr(0, text.size() - (has_line_break ? 1 : 0)),
                       has_line_break ? "\n" : "");
  }
  void add_faint_text(const std::string& prefix, const std::string& text) {
    text_ += colorize("2", wrap_text(prefix, text, columns_));
  }
  void add_heading(const std::string& title) {
    text_ += fmt::format("\n{}", colorize("1", wrap_text("", title, columns_)));
  }
  void add_fact(const char* name, const std::string& text) {
    text_ += wrap_text(fmt::format("  {:<6} ", name), to_printable(text), columns_);
  }
  /// Adds the number of entries that are not listed, of `num_entries` entries.
  void add_num_hidden_entries(size_t num_entries) {
    if (num_entries > kMaxListedEntries)
      add_faint_text("  ", fmt::format("and {} more: --json, --html",
                                       format_with_commas(static_cast<int64_t>(num_entries - kMaxListedEntries))));
  }
  void add_table_header(std::string text) {
    text.erase(text.find_last_not_of(" \n") + 1);
    text_ += colorize("2", text) + '\n';
  }

  void add_sources() {
    if (inspection_.sources.size() == 1 && format_source_options(inspection_.sources.front().source).empty()) return;
    add_heading("Sources");
    add_table_header(
        fmt::format("  {:<{}} {:>10} {:>10} {:>9}\n", "", kMaxNameCharacters, "samples", "usable", "shrunk"));
    for (const auto& source : inspection_.sources) {
      const bool is_text_only =
          source.num_usable_samples > 0 && source.num_samples_without_media == source.num_usable_samples;
      text_ +=
          fmt::format("  {} {:>10} {:>10} {:>9}  {}{}", pad_text(shorten_path(source.source.path), kMaxNameCharacters),
                      format_with_commas(source.num_records), format_with_commas(source.num_usable_samples),
                      format_with_commas(source.num_shrunk_samples), is_text_only ? "no media " : "",
                      to_printable(format_source_options(source.source)));
      end_line();
    }
  }

  void add_mixture() {
    if (inspection_.mixture_sources.empty()) return;
    add_heading("Drawn by shares");
    add_table_header(
        fmt::format("  {:<{}} {:>10} {:>10} {:>9}\n", "", kMaxNameCharacters, "share", "usable", "epochs"));
    for (const auto& source : inspection_.mixture_sources) {
      text_ += fmt::format("  {} {:>8.1f} % {:>10} {:>9.3g}\n", pad_text(shorten_name(source.name), kMaxNameCharacters),
                           100 * source.share, format_with_commas(source.num_usable_samples), source.epochs);
    }
  }

  void add_tasks() {
    if (inspection_.tasks.size() < 2) return;
    add_heading("Tasks");
    add_table_header(
        fmt::format("  {:<{}} {:>10} {:>13} {:>13}\n", "", kMaxNameCharacters, "samples", "tokens", "label tokens"));
    for (const auto& task : inspection_.tasks) {
      text_ += fmt::format("  {} {:>10} {:>13} {:>13}\n", pad_text(shorten_name(task.name), kMaxNameCharacters),
                           format_with_commas(task.samples), format_with_commas(task.tokens),
                           format_with_commas(task.label_tokens));
    }
  }

  void add_histogram(const NamedHistogram& histogram) {
    add_heading(fmt::format("{}: {}", histogram.name, histogram.text));
    const auto& bins = histogram.histogram->bins;
    if (bins.size() == 1) return;
    // Columns for the bin, the count and spaces; one column remains free at the end.
    constexpr int kLabelColumns = 32;
    BarScale scale{.max_value = 1, .columns = columns_ - kLabelColumns, .unicode = style_.unicode};
    for (const auto& bin : bins) scale.max_value = std::max(scale.max_value, bin.count);
    for (const auto& bin : bins) {
      std::string bar = draw_bar(0, bin.count, BarFill::kSolid, scale);
      bar.erase(bar.find_last_not_of(' ') + 1);
      text_ += fmt::format("  {:>16} {:>10}  {}", format_bin(bin), format_with_commas(bin.count), colorize("34", bar));
      end_line();
    }
  }

  void add_packs() {
    if (!inspection_.pack_limits) return;
    add_heading("Packs");
    text_ += wrap_text("  ", format_packs(inspection_) + ".", columns_);
  }

  void add_bad_samples() {
    if (inspection_.num_bad_samples() == 0) return;
    add_heading(fmt::format("Cannot be used: {}", format_bad_samples(inspection_)));
    const auto ledger = inspection_.ledger.to_json();
    for (const auto& [reason, count] : ledger["reasons"].items()) {
      text_ += fmt::format("  {:>8}  {}\n", format_with_commas(count.get<int64_t>()), to_printable(reason));
    }
    size_t num_listed = 0;
    for (const auto& problem : ledger["problems"]) {
      if (num_listed++ == kMaxListedEntries) break;
      add_faint_text("            ", make_excerpt(problem["message"].get<std::string>(), kMaxMessageCharacters));
    }
    add_num_hidden_entries(ledger["problems"].size());
  }

  void add_notices(const data::Ledger& ledger, const std::string& title) {
    const auto rows = make_notice_rows(ledger);
    if (rows.empty()) return;
    add_heading(fmt::format("{}: {}", title, pluralize(std::ssize(rows), "kind")));
    for (size_t i = 0; i < std::min(kMaxListedNotices, rows.size()); ++i) {
      text_ += wrap_text(
          fmt::format("  {:>8}  ", rows[i].samples),
          fmt::format("{} ({}){}{}", rows[i].kind, rows[i].example, rows[i].hint.empty() ? "" : "; ", rows[i].hint),
          columns_);
    }
    if (rows.size() > kMaxListedNotices) {
      add_faint_text("  ", fmt::format("and {} more: --json, --html",
                                       format_with_commas(static_cast<int64_t>(rows.size() - kMaxListedNotices))));
    }
  }

  void add_remarks() {
    if (inspection_.remarks.empty()) return;
    add_heading("Settings without effect");
    for (const auto& remark : inspection_.remarks) text_ += wrap_text("  ", to_printable(remark), columns_);
  }

  void add_missing_files() {
    if (inspection_.missing_files.empty()) return;
    add_heading(fmt::format("Missing files: {}", format_with_commas(std::ssize(inspection_.missing_files))));
    for (size_t i = 0; i < std::min(kMaxListedEntries, inspection_.missing_files.size()); ++i) {
      const auto& file = inspection_.missing_files[i];
      text_ += wrap_text("  ",
                         fmt::format("{}: {} ({}{})", to_printable(file.path), file.reason,
                                     to_printable(inspection_.missing_file_sample_ids[i]),
                                     file.num_records > 1 ? fmt::format(" and {} more", file.num_records - 1) : ""),
                         columns_);
    }
    add_num_hidden_entries(inspection_.missing_files.size());
  }

  void add_shrunk_samples() {
    const auto shrunk_samples = inspection_.ledger.to_json()["shrunk"]["each"];
    if (shrunk_samples.empty()) return;
    add_heading(
        fmt::format("Shrunk to fit {}: {}", keys::data::kMaxLength, pluralize(std::ssize(shrunk_samples), "sample")));
    for (size_t i = 0; i < std::min(kMaxListedEntries, shrunk_samples.size()); ++i) {
      const auto& sample = shrunk_samples[i];
      text_ += wrap_text("  ",
                         fmt::format("{}: {} → {} tokens, {} → {}", to_printable(sample["id"].get<std::string>()),
                                     format_with_commas(sample["tokens"][0].get<int64_t>()),
                                     format_with_commas(sample["tokens"][1].get<int64_t>()),
                                     format_pixels(sample["pixels"][0].get<int64_t>()),
                                     format_pixels(sample["pixels"][1].get<int64_t>())),
                         columns_);
    }
    add_num_hidden_entries(shrunk_samples.size());
  }

  void add_largest_samples() {
    if (inspection_.largest_samples.empty()) return;
    add_heading(inspection_.memory_prediction_target ? "Most memory" : "Largest samples");
    add_table_header(fmt::format("  {:<{}} {:>8} {:>8} {:>7} {:>8} {:>9}\n", "", kMaxNameCharacters, "tokens", "labels",
                                 inspection_.media_name(), inspection_.pixel_row_name(),
                                 inspection_.memory_prediction_target ? "memory" : ""));
    for (size_t i = 0; i < std::min(kMaxListedEntries, inspection_.largest_samples.size()); ++i) {
      const auto& sample = inspection_.largest_samples[i];
      text_ += fmt::format("  {} {:>8} {:>8} {:>7} {:>8}", pad_text(shorten_name(sample.id), kMaxNameCharacters),
                           format_with_commas(sample.shape.tokens), format_with_commas(sample.shape.label_tokens),
                           sample.shape.num_media(), format_with_commas(sample.shape.pixel_rows));
      if (sample.predicted_bytes > 0) text_ += fmt::format(" {:>9}", format_gigabytes(sample.predicted_bytes));
      text_ += "\n";
    }
    add_faint_text("  ", describe_largest_samples(inspection_));
  }

  void add_duplicates() {
    if (!inspection_.duplicate_samples.empty()) {
      add_heading(fmt::format("Duplicates: {} the text and images of an earlier one",
                              inspection_.count_duplicate_samples() == 1
                                  ? "1 sample has"
                                  : format_with_commas(inspection_.count_duplicate_samples()) + " samples have"));
      add_duplicate_groups(inspection_.duplicate_samples);
    }
    if (!inspection_.duplicate_files.empty()) {
      add_heading(fmt::format("Files with the same content under different names: {}",
                              pluralize(std::ssize(inspection_.duplicate_files), "group")));
      add_duplicate_groups(inspection_.duplicate_files);
    }
    if (inspection_.num_repeated_ids > 0) add_heading(format_repeated_ids(inspection_));
  }

  void add_duplicate_groups(const DuplicateGroups<std::string>& all_groups) {
    // Limits a group to one or two lines.
    constexpr size_t kMaxNamesPerGroup = 6;
    for (size_t i = 0; i < std::min(kMaxListedEntries, all_groups.size()); ++i) {
      std::vector<std::string> names(
          all_groups[i].begin(),
          all_groups[i].begin() + static_cast<std::ptrdiff_t>(std::min(kMaxNamesPerGroup, all_groups[i].size())));
      for (auto& name : names) name = to_printable(name);
      if (all_groups[i].size() > kMaxNamesPerGroup)
        names.push_back(fmt::format("and {} more", all_groups[i].size() - kMaxNamesPerGroup));
      text_ += wrap_text("  ", fmt::format("{}", fmt::join(names, ", ")), columns_);
    }
    add_num_hidden_entries(all_groups.size());
  }

  void add_evaluation() {
    if (!inspection_.evaluation) return;
    const InspectedEvaluation& evaluation = *inspection_.evaluation;
    add_heading(fmt::format("Evaluation ({}={}): {}", keys::data::kEval, to_printable(evaluation.name),
                            format_usable_samples(evaluation.ledger)));
    const auto add_overlap_line = [&](size_t count, const std::string& text, const auto& get_id) {
      std::vector<std::string> ids;
      for (size_t i = 0; i < std::min(kMaxListedEntries, count); ++i) ids.push_back(to_printable(get_id(i)));
      const std::string names =
          ids.empty() ? "" : fmt::format(": {}{}", fmt::join(ids, ", "), count > kMaxListedEntries ? ", …" : "");
      text_ +=
          wrap_text(fmt::format("  {:>8}  ", format_with_commas(static_cast<int64_t>(count))), text + names, columns_);
    };
    if (evaluation.num_samples_without_media > 0) {
      text_ += wrap_text(
          fmt::format("  {:>8}  ", format_with_commas(evaluation.num_samples_without_media)),
          fmt::format("{} no image, video or volume", get_has_or_have(evaluation.num_samples_without_media)), columns_);
    }
    add_overlap_line(evaluation.duplicate_id_pairs.size(),
                     fmt::format("{} also in the training data, with the same text and images",
                                 get_is_or_are(std::ssize(evaluation.duplicate_id_pairs))),
                     [&](size_t i) { return evaluation.duplicate_id_pairs[i].first; });
    add_overlap_line(
        evaluation.ids_with_train_media.size(),
        fmt::format("{} {} from the training data", get_has_or_have(std::ssize(evaluation.ids_with_train_media)),
                    inspection_.has_grid_rows ? "a volume" : "an image or video"),
        [&](size_t i) { return evaluation.ids_with_train_media[i]; });
    if (evaluation.has_subjects) add_shared_subjects(evaluation, add_overlap_line);
    add_notices(evaluation.ledger, fmt::format("Notices of {}", keys::data::kEval));
  }

  template <class AddLine>
  void add_shared_subjects(const InspectedEvaluation& evaluation, const AddLine& add_overlap_line) {
    add_overlap_line(evaluation.ids_with_train_subjects.size(),
                     fmt::format("{} of a subject in the training data",
                                 get_is_or_are(std::ssize(evaluation.ids_with_train_subjects))),
                     [&](size_t i) { return evaluation.ids_with_train_subjects[i]; });
    if (evaluation.train_subjects.empty()) return;
    add_overlap_line(evaluation.train_subjects.size(),
                     fmt::format("of the subjects {} in both", get_is_or_are(std::ssize(evaluation.train_subjects))),
                     [&](size_t i) { return evaluation.train_subjects[i]; });
  }

  void add_sample_previews() {
    for (const auto& sample : inspection_.sample_previews) {
      add_heading(fmt::format("Sample {}{}", to_printable(sample.id),
                              sample.task.empty() ? "" : fmt::format(" ({})", to_printable(sample.task))));
      if (!sample.problem.empty()) {
        text_ += wrap_text("  ", to_printable(sample.problem), columns_);
        continue;
      }
      text_ += to_printable_lines(highlight_answers(sample.rendered_chat));
      if (!text_.ends_with('\n')) text_ += "\n";
      add_faint_text(
          "", fmt::format("{} tokens: {} media tokens, {} label tokens (between ⟦ and ⟧); {}",
                          format_with_commas(sample.shape.tokens), format_with_commas(sample.shape.image_tokens),
                          format_with_commas(sample.shape.label_tokens), format_media(sample.shape, inspection_)));
    }
  }

  /// Ends the line without trailing spaces.
  void end_line() {
    text_.erase(text_.find_last_not_of(' ') + 1);
    text_ += "\n";
  }

  const Inspection& inspection_;
  const TextStyle& style_;
  int columns_;
  std::string text_;
};

}  // namespace

std::string format_inspection(const Inspection& inspection, const TextStyle& style) {
  return InspectionTextBuilder(inspection, style).text();
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
