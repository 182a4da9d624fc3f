#include "vlmtrain/report/inspection_text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "report/inspection_words.h"
#include "report/plan_bars.h"
#include "report/plan_words.h"
#include "report/wrapped_text.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/report/marked_chat.h"

namespace vlmtrain::report {

namespace {

constexpr size_t kListed = 5;
constexpr size_t kListedNotices = 20;
constexpr int kLeastColumns = 64;
constexpr int kWidestColumns = 100;
constexpr size_t kNameCharacters = 32;

/// At most so many columns.
std::string short_name(const std::string& text) {
  return excerpt(text, kNameCharacters - 1);
}

/// The end of a path in as many.
std::string short_path(const std::string& path) {
  const std::string text = printable(path);
  size_t begin = text.size();
  for (size_t characters = 1; begin > 0 && characters < kNameCharacters; ++characters) {
    do --begin;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80);
  }
  return begin == 0 ? text : fmt::format("…{}", text.substr(begin));
}

/// Padded to `columns`, whatever its bytes are.
std::string padded(const std::string& text, int columns) {
  return text + std::string(static_cast<size_t>(std::max(0, columns - text_columns(text))), ' ');
}

class InspectionWriter {
 public:
  InspectionWriter(const Inspection& inspection, const TextStyle& style)
      : found_(inspection), style_(style), columns_(std::clamp(style.width, kLeastColumns, kWidestColumns)) {}

  std::string text() {
    text_ = coloured(found_.stops_run ? "1;31" : "1;32", wrapped("", inspection_headline(found_), columns_));
    text_ += "\n";
    fact("data", found_.dataset);
    fact("model", found_.model);
    fact("words", found_.chat_template);
    fact("run", run_words(found_));
    sources();
    lanes();
    tasks();
    for (const auto& histogram : histograms_of(found_)) bars(histogram);
    packs();
    bad_samples();
    notices(found_.ledger, "Notices");
    remarks();
    missing_files();
    shrunk();
    largest();
    same();
    evaluation();
    samples();
    text_ += "\n";
    faint("", fmt::format("Found in {}; {}.", seconds_words(found_.seconds),
                          found_.decoded ? fmt::format("all {} were decoded", found_.media_kinds())
                                         : fmt::format("of {} the headers were read, --decode decodes all",
                                                       found_.media_kinds())));
    return std::move(text_);
  }

 private:
  std::string coloured(const char* colour, const std::string& text) const {
    if (!style_.colour) return text;
    const bool ends_line = text.ends_with('\n');
    return fmt::format("\x1b[{}m{}\x1b[0m{}", colour, text.substr(0, text.size() - (ends_line ? 1 : 0)),
                       ends_line ? "\n" : "");
  }
  void faint(const std::string& first, const std::string& text) {
    text_ += coloured("2", wrapped(first, text, columns_));
  }
  void heading(const std::string& title) { text_ += fmt::format("\n{}", coloured("1", wrapped("", title, columns_))); }
  void fact(const char* name, const std::string& text) {
    text_ += wrapped(fmt::format("  {:<6} ", name), printable(text), columns_);
  }
  void more(size_t all) {
    if (all > kListed)
      faint("  ", fmt::format("and {} more: --json, --html", grouped(static_cast<int64_t>(all - kListed))));
  }
  void row_head(std::string text) {
    text.erase(text.find_last_not_of(" \n") + 1);
    text_ += coloured("2", text) + '\n';
  }

  void sources() {
    if (found_.sources.size() == 1 && beside_words(found_.sources.front().source).empty()) return;
    heading("Sources");
    row_head(fmt::format("  {:<{}} {:>10} {:>10} {:>9}\n", "", kNameCharacters, "samples", "usable", "shrunk"));
    for (const auto& source : found_.sources) {
      const bool is_blind = source.usable > 0 && source.without_media == source.usable;
      text_ += fmt::format("  {} {:>10} {:>10} {:>9}  {}{}", padded(short_path(source.source.path), kNameCharacters),
                           grouped(source.records), grouped(source.usable), grouped(source.shrunk),
                           is_blind ? "no media " : "", printable(beside_words(source.source)));
      end_line();
    }
  }

  void lanes() {
    if (found_.lanes.empty()) return;
    heading("Drawn by shares");
    row_head(fmt::format("  {:<{}} {:>10} {:>10} {:>9}\n", "", kNameCharacters, "share", "usable", "epochs"));
    for (const auto& lane : found_.lanes) {
      text_ += fmt::format("  {} {:>8.1f} % {:>10} {:>9.3g}\n", padded(short_name(lane.name), kNameCharacters),
                           100 * lane.share, grouped(lane.usable), lane.epochs);
    }
  }

  void tasks() {
    if (found_.tasks.size() < 2) return;
    heading("Tasks");
    row_head(fmt::format("  {:<{}} {:>10} {:>13} {:>13}\n", "", kNameCharacters, "samples", "tokens", "label tokens"));
    for (const auto& task : found_.tasks) {
      text_ += fmt::format("  {} {:>10} {:>13} {:>13}\n", padded(short_name(task.name), kNameCharacters),
                           grouped(task.samples), grouped(task.tokens), grouped(task.label_tokens));
    }
  }

  void bars(const NamedHistogram& named) {
    heading(fmt::format("{}: {}", named.name, named.text));
    const auto& bins = named.histogram->bins;
    if (bins.size() == 1) return;
    constexpr int kBesideBars = 32;
    BarScale scale{.bytes = 1, .columns = columns_ - kBesideBars, .unicode = style_.unicode};
    for (const auto& bin : bins) scale.bytes = std::max(scale.bytes, bin.count);
    for (const auto& bin : bins) {
      std::string bar = draw_bar(0, bin.count, BarFill::kSolid, scale);
      bar.erase(bar.find_last_not_of(' ') + 1);
      text_ += fmt::format("  {:>16} {:>10}  {}", bin_words(bin), grouped(bin.count), coloured("34", bar));
      end_line();
    }
  }

  void packs() {
    if (!found_.pack_limits) return;
    heading("Packs");
    text_ += wrapped("  ", pack_words(found_) + ".", columns_);
  }

  void bad_samples() {
    if (found_.bad() == 0) return;
    heading(fmt::format("Cannot be used: {}", bad_words(found_)));
    const auto ledger = found_.ledger.to_json();
    for (const auto& [reason, count] : ledger["reasons"].items()) {
      text_ += fmt::format("  {:>8}  {}\n", grouped(count.get<int64_t>()), printable(reason));
    }
    size_t listed = 0;
    for (const auto& problem : ledger["problems"]) {
      if (listed++ == kListed) break;
      faint("            ", excerpt(problem["message"].get<std::string>(), 300));
    }
    more(ledger["problems"].size());
  }

  void notices(const data::Ledger& ledger, const char* title) {
    const auto rows = notice_rows(ledger);
    if (rows.empty()) return;
    heading(fmt::format("{}: {}", title, counted(std::ssize(rows), "kind")));
    for (size_t i = 0; i < std::min(kListedNotices, rows.size()); ++i) {
      text_ += wrapped(
          fmt::format("  {:>8}  ", rows[i].samples),
          fmt::format("{} ({}){}{}", rows[i].kind, rows[i].example, rows[i].hint.empty() ? "" : "; ", rows[i].hint),
          columns_);
    }
    if (rows.size() > kListedNotices) {
      faint("  ",
            fmt::format("and {} more: --json, --html", grouped(static_cast<int64_t>(rows.size() - kListedNotices))));
    }
  }

  void remarks() {
    if (found_.remarks.empty()) return;
    heading("Settings without effect");
    for (const auto& remark : found_.remarks) text_ += wrapped("  ", printable(remark), columns_);
  }

  void missing_files() {
    if (found_.missing_files.empty()) return;
    heading(fmt::format("Files that are not there: {}", grouped(std::ssize(found_.missing_files))));
    for (size_t i = 0; i < std::min(kListed, found_.missing_files.size()); ++i) {
      const auto& file = found_.missing_files[i];
      text_ += wrapped("  ",
                       fmt::format("{}: {} ({}{})", printable(file.path), file.reason, printable(found_.missing_in[i]),
                                   file.records > 1 ? fmt::format(" and {} more", file.records - 1) : ""),
                       columns_);
    }
    more(found_.missing_files.size());
  }

  void shrunk() {
    const auto each = found_.ledger.to_json()["shrunk"]["each"];
    if (each.empty()) return;
    heading(fmt::format("Made smaller to fit data.max_length: {}", counted(std::ssize(each), "sample")));
    for (size_t i = 0; i < std::min(kListed, each.size()); ++i) {
      const auto& sample = each[i];
      text_ += wrapped(
          "  ",
          fmt::format("{}: {} → {} tokens, {} → {}", printable(sample["id"].get<std::string>()),
                      grouped(sample["tokens"][0].get<int64_t>()), grouped(sample["tokens"][1].get<int64_t>()),
                      pixel_words(sample["pixels"][0].get<int64_t>()), pixel_words(sample["pixels"][1].get<int64_t>())),
          columns_);
    }
    more(each.size());
  }

  void largest() {
    if (found_.largest.empty()) return;
    heading(found_.predicted_for ? "Most memory" : "Largest samples");
    row_head(fmt::format("  {:<{}} {:>8} {:>8} {:>7} {:>8} {:>9}\n", "", kNameCharacters, "tokens", "labels",
                         found_.medium_word(), found_.row_word(), found_.predicted_for ? "memory" : ""));
    for (size_t i = 0; i < std::min(kListed, found_.largest.size()); ++i) {
      const auto& sample = found_.largest[i];
      text_ += fmt::format("  {} {:>8} {:>8} {:>7} {:>8}", padded(short_name(sample.id), kNameCharacters),
                           grouped(sample.shape.tokens), grouped(sample.shape.label_tokens), sample.shape.images,
                           grouped(sample.shape.pixel_rows));
      if (sample.predicted_bytes > 0) text_ += fmt::format(" {:>9}", gigabytes(sample.predicted_bytes));
      text_ += "\n";
    }
    faint("  ", largest_words(found_));
  }

  void same() {
    if (!found_.same_samples.empty()) {
      heading(fmt::format("Repeated: {} the words and pictures of an earlier one",
                          found_.repeated() == 1 ? "1 sample has" : grouped(found_.repeated()) + " samples have"));
      groups(found_.same_samples);
    }
    if (!found_.same_files.empty()) {
      heading(fmt::format("Files of the same content under different names: {}",
                          counted(std::ssize(found_.same_files), "group")));
      groups(found_.same_files);
    }
    if (found_.repeated_ids > 0) heading(repeated_ids_words(found_));
  }

  void groups(const SameGroups<std::string>& all) {
    constexpr size_t kOfAGroup = 6;
    for (size_t i = 0; i < std::min(kListed, all.size()); ++i) {
      std::vector<std::string> names(all[i].begin(),
                                     all[i].begin() + static_cast<std::ptrdiff_t>(std::min(kOfAGroup, all[i].size())));
      for (auto& name : names) name = printable(name);
      if (all[i].size() > kOfAGroup) names.push_back(fmt::format("and {} more", all[i].size() - kOfAGroup));
      text_ += wrapped("  ", fmt::format("{}", fmt::join(names, ", ")), columns_);
    }
    more(all.size());
  }

  void evaluation() {
    if (!found_.evaluation) return;
    const InspectedEvaluation& evaluation = *found_.evaluation;
    heading(fmt::format("Evaluation (data.eval={}): {}", printable(evaluation.name), usable_words(evaluation.ledger)));
    const auto line = [&](size_t count, const char* what, const auto& id_of) {
      std::vector<std::string> ids;
      for (size_t i = 0; i < std::min(kListed, count); ++i) ids.push_back(printable(id_of(i)));
      const std::string names =
          ids.empty() ? "" : fmt::format(": {}{}", fmt::join(ids, ", "), count > kListed ? ", …" : "");
      text_ += wrapped(fmt::format("  {:>8}  ", grouped(static_cast<int64_t>(count))), what + names, columns_);
    };
    if (evaluation.without_media > 0) {
      text_ += wrapped(fmt::format("  {:>8}  ", grouped(evaluation.without_media)), "have no image, video or volume",
                       columns_);
    }
    line(evaluation.also_trained.size(), "are trained on too, word for word and with the same pictures",
         [&](size_t i) { return evaluation.also_trained[i].first; });
    line(evaluation.with_trained_media.size(),
         found_.has_grids ? "have a volume that is trained on" : "have a picture or video that is trained on",
         [&](size_t i) { return evaluation.with_trained_media[i]; });
    if (evaluation.names_subjects) subjects(evaluation, line);
    notices(evaluation.ledger, "Notices of data.eval");
  }

  template <class Line>
  void subjects(const InspectedEvaluation& evaluation, const Line& line) {
    line(evaluation.with_trained_subjects.size(), "are of a subject that is trained on",
         [&](size_t i) { return evaluation.with_trained_subjects[i]; });
    if (evaluation.trained_subjects.empty()) return;
    line(evaluation.trained_subjects.size(), "of the subjects are in both",
         [&](size_t i) { return evaluation.trained_subjects[i]; });
  }

  void samples() {
    for (const auto& sample : found_.shown) {
      heading(fmt::format("Sample {}{}", printable(sample.id),
                          sample.task.empty() ? "" : fmt::format(" ({})", printable(sample.task))));
      if (!sample.problem.empty()) {
        text_ += wrapped("  ", printable(sample.problem), columns_);
        continue;
      }
      text_ += printable_lines(marked_chat(sample.chat));
      if (!text_.ends_with('\n')) text_ += "\n";
      faint("", fmt::format("{} tokens, {} of them of media, {} learnt (between ⟦ and ⟧); {}",
                            grouped(sample.shape.tokens), grouped(sample.shape.image_tokens),
                            grouped(sample.shape.label_tokens), media_words(sample.shape, found_)));
    }
  }

  void end_line() {
    text_.erase(text_.find_last_not_of(' ') + 1);
    text_ += "\n";
  }

  const Inspection& found_;
  const TextStyle& style_;
  int columns_;
  std::string text_;
};

}  // namespace

std::string inspection_text(const Inspection& inspection, const TextStyle& style) {
  return InspectionWriter(inspection, style).text();
}

}  // namespace vlmtrain::report
