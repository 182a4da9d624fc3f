#include "vlmtrain/report/inspection_page.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "report/histogram_svg.h"
#include "report/inspection_words.h"
#include "report/page.h"
#include "report/plan_words.h"
#include "report/seen_picture_svg.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/report/inspection_text.h"
#include "vlmtrain/report/marked_chat.h"

namespace vlmtrain::report {

namespace {

using nlohmann::ordered_json;

std::string shown(std::string_view text) {
  return html_escaped(printable(text));
}

std::string panel(const std::string& title, const std::string& content) {
  return fmt::format("<section class=\"panel\">\n<h2>{}</h2>\n{}</section>\n", html_escaped(title), content);
}

std::string hint(const std::string& text) {
  return fmt::format("<p class=\"hint\">{}</p>\n", shown(text));
}

std::string folded(const std::string& summary, const std::string& content) {
  return fmt::format("<details><summary>{}</summary>{}</details>\n", html_escaped(summary), content);
}

/// Rows of cells, of which those in `texts` are set as texts, not as numbers.
class PageTable {
 public:
  explicit PageTable(const std::vector<std::string>& heads, size_t texts = 1) : texts_(texts) {
    html_ = "<table><thead>" + row(heads, "th") + "</thead><tbody>\n";
  }
  void add(const std::vector<std::string>& cells) { html_ += row(cells, "td"); }
  std::string html() const { return html_ + "</tbody></table>\n"; }

 private:
  std::string row(const std::vector<std::string>& cells, const char* tag) const {
    std::string html = "<tr>";
    for (size_t i = 0; i < cells.size(); ++i) {
      const char* const style = i == 0 ? R"( class="id")" : i < texts_ ? R"( class="text")" : "";
      html += fmt::format("<{0}{1}>{2}</{0}>", tag, style, shown(cells[i]));
    }
    return html + "</tr>\n";
  }

  size_t texts_;
  std::string html_;
};

/// The first rows of a table at once, all of them folded.
constexpr size_t kOpenRows = 8;

template <class Entries, class Cells>
std::string long_table(const std::vector<std::string>& heads, size_t texts, const Entries& entries,
                       const Cells& cells) {
  PageTable first(heads, texts), rest(heads, texts);
  size_t number = 0;
  for (const auto& entry : entries) (number++ < kOpenRows ? first : rest).add(cells(entry));
  if (number <= kOpenRows) return first.html();
  return first.html() + folded(grouped(static_cast<int64_t>(number - kOpenRows)) + " more", rest.html());
}

std::string group_list(const SameGroups<std::string>& groups) {
  const auto list = [&](size_t begin, size_t end) {
    std::string html = "<ul class=\"groups\">\n";
    for (size_t i = begin; i < end; ++i)
      html += fmt::format("<li>{}</li>\n", shown(fmt::format("{}", fmt::join(groups[i], ", "))));
    return html + "</ul>\n";
  };
  const size_t open = std::min(kOpenRows, groups.size());
  const auto left = static_cast<int64_t>(groups.size() - open);
  return list(0, open) + (left > 0 ? folded(grouped(left) + " more", list(open, groups.size())) : "");
}

class InspectionSections {
 public:
  explicit InspectionSections(const Inspection& inspection)
      : found_(inspection), ledger_(inspection.ledger.to_json()) {}

  std::string html() {
    std::string overview = facts() + sources() + lanes() + tasks();
    std::string pictures;
    for (const auto& named : histograms_of(found_)) {
      const bool is_one = named.histogram->bins.size() == 1;
      pictures += panel(fmt::format("{} of a sample", named.name),
                        (is_one ? "" : histogram_svg(*named.histogram)) + hint(fmt::format("{}.", named.text)));
    }
    std::string findings = bad_samples() + notices(found_.ledger, "Notices") + remarks() + missing_files() + shrunk() +
                           largest() + packs() + evaluation() + same();
    std::string html = panels(overview) + panels(pictures, " small") + panels(findings, " wide");
    for (const auto& sample : found_.shown) html += sample_panel(sample);
    return html;
  }

 private:
  static std::string panels(const std::string& content, const char* style = "") {
    return content.empty() ? "" : fmt::format("<div class=\"panels{}\">\n{}</div>\n", style, content);
  }

  std::string facts() const {
    std::string rows;
    const auto add = [&](const char* name, const std::string& text) {
      rows += fmt::format("<dt>{}</dt><dd>{}</dd>\n", name, shown(text));
    };
    add("data", found_.dataset);
    add("model", found_.model);
    add("words", found_.chat_template);
    add("run", run_words(found_));
    add("media", fmt::format("{} different {}, {}", grouped(found_.media), found_.media_kinds(),
                             found_.decoded ? "all decoded" : "of which the headers were read"));
    return panel("The run", "<dl>\n" + rows + "</dl>\n");
  }

  std::string sources() const {
    const bool have_shares =
        std::ranges::any_of(found_.sources, [](const auto& source) { return !beside_words(source.source).empty(); });
    std::vector<std::string> heads{"source", "samples", "usable", "shrunk", "no media"};
    if (have_shares) heads.insert(heads.begin() + 1, "drawn as");
    PageTable table(heads, have_shares ? 2 : 1);
    for (const auto& source : found_.sources) {
      std::vector<std::string> cells{source.source.path, grouped(source.records), grouped(source.usable),
                                     grouped(source.shrunk), grouped(source.without_media)};
      if (have_shares) cells.insert(cells.begin() + 1, beside_words(source.source));
      table.add(cells);
    }
    return panel("Sources", table.html());
  }

  std::string lanes() const {
    if (found_.lanes.empty()) return {};
    PageTable table({"drawn from", "share", "usable", "epochs of its own"});
    for (const auto& lane : found_.lanes) {
      table.add({lane.name, fmt::format("{:.1f} %", 100 * lane.share), grouped(lane.usable),
                 fmt::format("{:.3g}", lane.epochs)});
    }
    return panel("Drawn by shares", table.html());
  }

  std::string tasks() const {
    if (found_.tasks.size() < 2) return {};
    PageTable table({"task", "samples", "tokens", "label tokens"});
    for (const auto& task : found_.tasks) {
      table.add({task.name, grouped(task.samples), grouped(task.tokens), grouped(task.label_tokens)});
    }
    return panel("Tasks", table.html());
  }

  std::string bad_samples() const {
    if (found_.bad() == 0) return {};
    PageTable reasons({"reason", "samples"});
    for (const auto& [reason, count] : ledger_["reasons"].items()) reasons.add({reason, grouped(count.get<int64_t>())});
    return panel(
        "Cannot be used: " + bad_words(found_),
        reasons.html() + long_table({"sample", "why"}, 2, ledger_["problems"], [](const ordered_json& problem) {
          return std::vector<std::string>{problem["id"], problem["message"]};
        }));
  }

  static std::string notices(const data::Ledger& ledger, const std::string& title) {
    const auto rows = notice_rows(ledger);
    if (rows.empty()) return {};
    return panel(title, long_table({"notice", "such as", "samples"}, 2, rows, [](const NoticeRow& row) {
                   return std::vector<std::string>{row.hint.empty() ? row.kind : row.kind + "; " + row.hint,
                                                   row.example, row.samples};
                 }));
  }

  std::string remarks() const {
    if (found_.remarks.empty()) return {};
    std::string html;
    for (const auto& remark : found_.remarks) html += hint(remark);
    return panel("Settings without effect", html);
  }

  std::string missing_files() const {
    if (found_.missing_files.empty()) return {};
    size_t number = 0;
    return panel(
        "Files that are not there",
        long_table({"file", "why", "first in", "samples"}, 3, found_.missing_files, [&](const data::MissingFile& file) {
          return std::vector<std::string>{file.path, file.reason, found_.missing_in[number++], grouped(file.records)};
        }));
  }

  std::string shrunk() const {
    const ordered_json& each = ledger_["shrunk"]["each"];
    if (each.empty()) return {};
    return panel("Made smaller to fit data.max_length: " + counted(std::ssize(each), "sample"),
                 long_table({"sample", "tokens", "of", "pixels", "of"}, 1, each, [](const ordered_json& sample) {
                   return std::vector<std::string>{sample["id"], grouped(sample["tokens"][1]),
                                                   grouped(sample["tokens"][0]), pixel_words(sample["pixels"][1]),
                                                   pixel_words(sample["pixels"][0])};
                 }));
  }

  std::string largest() const {
    if (found_.largest.empty()) return {};
    std::vector<std::string> heads{"sample", "tokens", "labels", found_.medium_word(), found_.row_word()};
    if (found_.predicted_for) heads.insert(heads.begin() + 1, "memory");
    PageTable table(heads);
    for (const auto& sample : found_.largest) {
      std::vector<std::string> cells{sample.id, grouped(sample.shape.tokens), grouped(sample.shape.label_tokens),
                                     grouped(sample.shape.images), grouped(sample.shape.pixel_rows)};
      if (found_.predicted_for) cells.insert(cells.begin() + 1, gigabytes(sample.predicted_bytes));
      table.add(cells);
    }
    return panel(found_.predicted_for ? "Most memory" : "Largest samples", table.html() + hint(largest_words(found_)));
  }

  std::string packs() const {
    if (!found_.pack_limits) return {};
    std::vector<int64_t> tokens, images, rows;
    for (const auto& pack : found_.packs.packs) {
      tokens.push_back(pack.tokens);
      images.push_back(pack.images);
      rows.push_back(pack.tiles);
    }
    std::string html = hint(fmt::format("{}.", pack_words(found_)));
    const auto add = [&](const char* name, std::vector<int64_t> numbers) {
      const auto histogram = data::histogram_of(std::move(numbers));
      html += hint(fmt::format("{} of a pack", name)) + histogram_svg(histogram);
    };
    add("Tokens", std::move(tokens));
    add(found_.has_grids ? "Volumes" : "Images", std::move(images));
    add(row_title(found_), std::move(rows));
    html += folded(fmt::format("the pack of most {}", found_.row_word()), group_list({found_.pack_of_most_tiles}));
    return panel("Packs", html);
  }

  std::string evaluation() const {
    if (!found_.evaluation) return {};
    const InspectedEvaluation& evaluation = *found_.evaluation;
    const ordered_json ledger = evaluation.ledger.to_json();
    std::string html = hint(fmt::format("data.eval={}: {}.", evaluation.name, usable_words(evaluation.ledger)));
    if (evaluation.without_media > 0) {
      html += hint(fmt::format("{} have no image, video or volume.", grouped(evaluation.without_media)));
    }
    html += hint(fmt::format("{} are trained on too, word for word and with the same pictures.",
                             grouped(std::ssize(evaluation.also_trained))));
    if (!evaluation.also_trained.empty()) {
      html += long_table({"in data.eval", "in data.train"}, 2, evaluation.also_trained, [](const auto& pair) {
        return std::vector<std::string>{pair.first, pair.second};
      });
    }
    html += hint(fmt::format("{} have a {} that is trained on.", grouped(std::ssize(evaluation.with_trained_media)),
                             found_.has_grids ? "volume" : "picture or video"));
    if (!evaluation.with_trained_media.empty()) html += folded("which", group_list({evaluation.with_trained_media}));
    html += subjects(evaluation);
    if (!ledger["problems"].empty()) {
      html += long_table({"sample", "why"}, 2, ledger["problems"], [](const ordered_json& problem) {
        return std::vector<std::string>{problem["id"], problem["message"]};
      });
    }
    return panel("Evaluation", html) + notices(evaluation.ledger, "Notices of data.eval");
  }

  /// Of patients: who is in both sets makes scores look better than they are.
  static std::string subjects(const InspectedEvaluation& evaluation) {
    if (!evaluation.names_subjects) return {};
    std::string html = hint(
        fmt::format("{} are of a subject that is trained on.", grouped(std::ssize(evaluation.with_trained_subjects))));
    if (evaluation.trained_subjects.empty()) return html;
    html += folded("which", group_list({evaluation.with_trained_subjects}));
    html += hint(fmt::format("{} of the subjects are in both:", grouped(std::ssize(evaluation.trained_subjects))));
    return html + group_list({evaluation.trained_subjects});
  }

  std::string same() const {
    std::string html;
    if (!found_.same_samples.empty()) {
      html += panel("Repeated samples", hint(fmt::format("{} with the words and pictures of an earlier one.",
                                                         counted(found_.repeated(), "sample"))) +
                                            group_list(found_.same_samples));
    }
    if (!found_.same_files.empty()) {
      html += panel("Files of the same content", group_list(found_.same_files));
    }
    if (found_.repeated_ids > 0) html += panel("Repeated ids", hint(repeated_ids_words(found_)));
    return html;
  }

  std::string sample_panel(const ShownSample& sample) const {
    const std::string title = fmt::format("Sample {}{}", printable(sample.id),
                                          sample.task.empty() ? "" : fmt::format(" ({})", printable(sample.task)));
    if (!sample.problem.empty()) return panel(title, fmt::format("<p class=\"bad\">{}</p>\n", shown(sample.problem)));
    std::string words = fmt::format("{} tokens, {} of them of media; {} are learnt, which are marked. {}.",
                                    grouped(sample.shape.tokens), grouped(sample.shape.image_tokens),
                                    grouped(sample.shape.label_tokens), media_words(sample.shape, found_));
    if (sample.shrunk) {
      words += fmt::format(" Made smaller, it would have {} tokens and {}.", grouped(sample.shrunk->tokens),
                           pixel_words(sample.shrunk->pixels));
    }
    return panel(
        title,
        hint(words) +
            fmt::format("<div class=\"sample{}\"><p class=\"chat\">{}</p><div class=\"pictures\">{}</div></div>\n",
                        sample.pictures.empty() ? " words" : "",
                        marked_chat(sample.chat, "<mark>", "</mark>", html_escaped),
                        seen_pictures_html(sample.pictures)));
  }

  const Inspection& found_;
  const ordered_json ledger_;
};

}  // namespace

std::string inspection_html(const Inspection& inspection) {
  const char* const pictures =
      inspection.has_grids
          ? "Volumes are those of the tower's input, resampled and normalised, of which the three middle slices are "
            "shown: axial, coronal, sagittal, the subject's right on the left."
          : "Pictures are those of the tower's input before they are normalised, pixel for pixel; lines divide them "
            "into "
            "the tiles that it sees.";
  const std::string notes =
      fmt::format("{} Samples are those that training draws first. Samples are compared by hashes.", pictures);
  return filled_page("inspection.html", {{"title", shown(inspection.dataset + ": what is trained on")},
                                         {"style", std::string(resources().at("common.css")) +
                                                       std::string(resources().at("inspection.css"))},
                                         {"answer_class", inspection.stops_run ? "fails" : "fits"},
                                         {"headline", shown(inspection_headline(inspection))},
                                         {"sections", InspectionSections(inspection).html()},
                                         {"notes", html_escaped(notes)}});
}

}  // namespace vlmtrain::report
