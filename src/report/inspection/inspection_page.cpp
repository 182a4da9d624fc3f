#include <fmt/ranges.h>

#include <algorithm>

#include "report/format/html.h"
#include "report/inspection/inspection_format.h"
#include "report/plan/plan_format.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/report/inspection.h"

namespace vlmtrain::report {

namespace {

using nlohmann::ordered_json;

/// Returns one line of text, escaped for HTML.
std::string escape_html_line(std::string_view text) {
  return escape_html(to_printable(text));
}

std::string make_panel(const std::string& title, const std::string& content) {
  return fmt::format("<section class=\"panel\">\n<h2>{}</h2>\n{}</section>\n", escape_html(title), content);
}

std::string make_hint_paragraph(const std::string& text) {
  return fmt::format("<p class=\"hint\">{}</p>\n", escape_html_line(text));
}

std::string make_details_element(const std::string& summary, const std::string& content) {
  return fmt::format("<details><summary>{}</summary>{}</details>\n", escape_html(summary), content);
}

/// An HTML table whose first `num_text_columns` columns are text and whose others are numbers.
class HtmlTable {
 public:
  explicit HtmlTable(const std::vector<std::string>& headers, size_t num_text_columns = 1)
      : num_text_columns_(num_text_columns) {
    html_ = "<table><thead>" + make_row(headers, "th") + "</thead><tbody>\n";
  }
  void add(const std::vector<std::string>& cells) { html_ += make_row(cells, "td"); }
  std::string html() const { return html_ + "</tbody></table>\n"; }

 private:
  std::string make_row(const std::vector<std::string>& cells, const char* tag) const {
    std::string html = "<tr>";
    for (size_t i = 0; i < cells.size(); ++i) {
      const char* const style = i == 0 ? R"( class="id")" : i < num_text_columns_ ? R"( class="text")" : "";
      html += fmt::format("<{0}{1}>{2}</{0}>", tag, style, escape_html_line(cells[i]));
    }
    return html + "</tr>\n";
  }

  size_t num_text_columns_;
  std::string html_;
};

/// Rows of a long table that are visible before the reader expands it. Not tuned.
constexpr size_t kMaxVisibleRows = 8;

/// Returns a table with a row `cells(entry)` for each entry. Rows after the first kMaxVisibleRows
/// are collapsed.
template <class Entries, class Cells>
std::string make_collapsible_table(const std::vector<std::string>& headers, size_t num_text_columns,
                                   const Entries& entries, const Cells& cells) {
  HtmlTable first(headers, num_text_columns), remaining(headers, num_text_columns);
  size_t number = 0;
  for (const auto& entry : entries) (number++ < kMaxVisibleRows ? first : remaining).add(cells(entry));
  if (number <= kMaxVisibleRows) return first.html();
  return first.html() +
         make_details_element(format_with_commas(static_cast<int64_t>(number - kMaxVisibleRows)) + " more",
                              remaining.html());
}

/// Returns an HTML list of the groups. Groups after the first kMaxVisibleRows are collapsed.
std::string make_duplicate_group_list(const DuplicateGroups<std::string>& groups) {
  const auto make_list = [&](size_t begin, size_t end) {
    std::string html = "<ul class=\"groups\">\n";
    for (size_t i = begin; i < end; ++i)
      html += fmt::format("<li>{}</li>\n", escape_html_line(fmt::format("{}", fmt::join(groups[i], ", "))));
    return html + "</ul>\n";
  };
  const size_t num_visible_groups = std::min(kMaxVisibleRows, groups.size());
  const auto num_collapsed_groups = static_cast<int64_t>(groups.size() - num_visible_groups);
  return make_list(0, num_visible_groups) +
         (num_collapsed_groups > 0 ? make_details_element(format_with_commas(num_collapsed_groups) + " more",
                                                          make_list(num_visible_groups, groups.size()))
                                   : "");
}

/// A builder of the sections of the page.
class InspectionPageBuilder {
 public:
  explicit InspectionPageBuilder(const Inspection& inspection)
      : inspection_(inspection), ledger_(inspection.ledger.to_json()) {}

  std::string html() {
    std::string overview = render_facts() + render_sources() + render_mixture() + render_tasks();
    std::string histograms;
    for (const auto& histogram : list_histograms(inspection_)) {
      const bool has_single_bin = histogram.histogram->bins.size() == 1;
      histograms += make_panel(fmt::format("{} per sample", histogram.name),
                               (has_single_bin ? "" : render_histogram_svg(*histogram.histogram)) +
                                   make_hint_paragraph(fmt::format("{}.", histogram.text)));
    }
    std::string problem_panels = render_bad_samples() + render_notices(inspection_.ledger, "Notices") +
                                 render_remarks() + render_missing_files() + render_shrunk_samples() +
                                 render_largest_samples() + render_packs() + render_evaluation() + render_duplicates();
    std::string html = wrap_panels(overview) + wrap_panels(histograms, " small") + wrap_panels(problem_panels, " wide");
    for (const auto& sample : inspection_.sample_previews) html += render_sample_preview(sample);
    return html;
  }

 private:
  static std::string wrap_panels(const std::string& content, const char* style = "") {
    return content.empty() ? "" : fmt::format("<div class=\"panels{}\">\n{}</div>\n", style, content);
  }

  std::string render_facts() const {
    std::string rows;
    const auto add = [&](const char* name, const std::string& text) {
      rows += fmt::format("<dt>{}</dt><dd>{}</dd>\n", name, escape_html_line(text));
    };
    add("data", inspection_.dataset);
    add("model", inspection_.model);
    add("chat template", inspection_.chat_template);
    add("run", format_training_length(inspection_));
    add("media", fmt::format("{} different {}, {}", format_with_commas(inspection_.num_distinct_media),
                             inspection_.media_description(),
                             inspection_.has_decoded_media ? "all decoded" : "only the headers were read"));
    return make_panel("Run", "<dl>\n" + rows + "</dl>\n");
  }

  std::string render_sources() const {
    const bool has_sampling_column = std::ranges::any_of(
        inspection_.sources, [](const auto& source) { return !format_source_options(source.source).empty(); });
    std::vector<std::string> headers{"source", "samples", "usable", "shrunk", "no media"};
    if (has_sampling_column) headers.insert(headers.begin() + 1, "sampling");
    HtmlTable table(headers, has_sampling_column ? 2 : 1);
    for (const auto& source : inspection_.sources) {
      std::vector<std::string> cells{
          source.source.path, format_with_commas(source.num_records), format_with_commas(source.num_usable_samples),
          format_with_commas(source.num_shrunk_samples), format_with_commas(source.num_samples_without_media)};
      if (has_sampling_column) cells.insert(cells.begin() + 1, format_source_options(source.source));
      table.add(cells);
    }
    return make_panel("Sources", table.html());
  }

  std::string render_mixture() const {
    if (inspection_.mixture_sources.empty()) return {};
    HtmlTable table({"drawn from", "share", "usable", "epochs"});
    for (const auto& source : inspection_.mixture_sources) {
      table.add({source.name, fmt::format("{:.1f} %", 100 * source.share),
                 format_with_commas(source.num_usable_samples), fmt::format("{:.3g}", source.epochs)});
    }
    return make_panel("Drawn by shares", table.html());
  }

  std::string render_tasks() const {
    if (inspection_.tasks.size() < 2) return {};
    HtmlTable table({"task", "samples", "tokens", "label tokens"});
    for (const auto& task : inspection_.tasks) {
      table.add({task.name, format_with_commas(task.samples), format_with_commas(task.tokens),
                 format_with_commas(task.label_tokens)});
    }
    return make_panel("Tasks", table.html());
  }

  std::string render_bad_samples() const {
    if (inspection_.num_bad_samples() == 0) return {};
    HtmlTable reason_table({"reason", "samples"});
    for (const auto& [reason, count] : ledger_["reasons"].items())
      reason_table.add({reason, format_with_commas(count.get<int64_t>())});
    return make_panel(
        "Cannot be used: " + format_bad_samples(inspection_),
        reason_table.html() +
            make_collapsible_table({"sample", "message"}, 2, ledger_["problems"], [](const ordered_json& problem) {
              return std::vector<std::string>{problem["id"], problem["message"]};
            }));
  }

  static std::string render_notices(const data::Ledger& ledger, const std::string& title) {
    const auto rows = make_notice_rows(ledger);
    if (rows.empty()) return {};
    return make_panel(title,
                      make_collapsible_table({"notice", "example", "samples"}, 2, rows, [](const NoticeRow& row) {
                        return std::vector<std::string>{row.hint.empty() ? row.kind : row.kind + "; " + row.hint,
                                                        row.example, row.samples};
                      }));
  }

  std::string render_remarks() const {
    if (inspection_.remarks.empty()) return {};
    std::string html;
    for (const auto& remark : inspection_.remarks) html += make_hint_paragraph(remark);
    return make_panel("Settings without effect", html);
  }

  std::string render_missing_files() const {
    if (inspection_.missing_files.empty()) return {};
    size_t number = 0;
    return make_panel("Missing files", make_collapsible_table(
                                           {"file", "reason", "first in", "samples"}, 3, inspection_.missing_files,
                                           [&](const data::MissingFile& file) {
                                             return std::vector<std::string>{
                                                 file.path, file.reason, inspection_.missing_file_sample_ids[number++],
                                                 format_with_commas(file.num_records)};
                                           }));
  }

  std::string render_shrunk_samples() const {
    const ordered_json& shrunk_samples = ledger_["shrunk"]["each"];
    if (shrunk_samples.empty()) return {};
    return make_panel(
        fmt::format("Shrunk to fit {}: ", keys::data::kMaxLength) + pluralize(std::ssize(shrunk_samples), "sample"),
        make_collapsible_table(
            {"sample", "tokens", "before", "pixels", "before"}, 1, shrunk_samples, [](const ordered_json& sample) {
              return std::vector<std::string>{sample["id"], format_with_commas(sample["tokens"][1]),
                                              format_with_commas(sample["tokens"][0]),
                                              format_pixels(sample["pixels"][1]), format_pixels(sample["pixels"][0])};
            }));
  }

  std::string render_largest_samples() const {
    if (inspection_.largest_samples.empty()) return {};
    std::vector<std::string> headers{"sample", "tokens", "labels", inspection_.media_name(),
                                     inspection_.pixel_row_name()};
    if (inspection_.memory_prediction_target) headers.insert(headers.begin() + 1, "memory");
    HtmlTable table(headers);
    for (const auto& sample : inspection_.largest_samples) {
      std::vector<std::string> cells{
          sample.id, format_with_commas(sample.shape.tokens), format_with_commas(sample.shape.label_tokens),
          format_with_commas(sample.shape.num_media()), format_with_commas(sample.shape.pixel_rows)};
      if (inspection_.memory_prediction_target)
        cells.insert(cells.begin() + 1, format_gigabytes(sample.predicted_bytes));
      table.add(cells);
    }
    return make_panel(inspection_.memory_prediction_target ? "Most memory" : "Largest samples",
                      table.html() + make_hint_paragraph(describe_largest_samples(inspection_)));
  }

  std::string render_packs() const {
    if (!inspection_.pack_limits) return {};
    std::vector<int64_t> tokens, images, rows;
    for (const auto& pack : inspection_.pack_statistics.pack_sizes) {
      tokens.push_back(pack.tokens);
      images.push_back(pack.num_media);
      rows.push_back(pack.tiles);
    }
    std::string html = make_hint_paragraph(fmt::format("{}.", format_packs(inspection_)));
    const auto add = [&](const char* name, std::vector<int64_t> numbers) {
      const auto histogram = data::make_histogram(std::move(numbers));
      html += make_hint_paragraph(fmt::format("{} per pack", name)) + render_histogram_svg(histogram);
    };
    add("Tokens", std::move(tokens));
    add(inspection_.has_grid_rows ? "Volumes" : "Images", std::move(images));
    add(get_pixel_row_label(inspection_), std::move(rows));
    html += make_details_element(fmt::format("the pack with the most {}", inspection_.pixel_row_name()),
                                 make_duplicate_group_list({inspection_.largest_pack_sample_ids}));
    return make_panel("Packs", html);
  }

  std::string render_evaluation() const {
    if (!inspection_.evaluation) return {};
    const InspectedEvaluation& evaluation = *inspection_.evaluation;
    const ordered_json ledger = evaluation.ledger.to_json();
    std::string html = make_hint_paragraph(
        fmt::format("{}={}: {}.", keys::data::kEval, evaluation.name, format_usable_samples(evaluation.ledger)));
    if (evaluation.num_samples_without_media > 0) {
      html += make_hint_paragraph(fmt::format("{} {} no image, video or volume.",
                                              format_with_commas(evaluation.num_samples_without_media),
                                              get_has_or_have(evaluation.num_samples_without_media)));
    }
    html += make_hint_paragraph(fmt::format("{} {} also in the training data, with the same text and images.",
                                            format_with_commas(std::ssize(evaluation.duplicate_id_pairs)),
                                            get_is_or_are(std::ssize(evaluation.duplicate_id_pairs))));
    if (!evaluation.duplicate_id_pairs.empty()) {
      html +=
          make_collapsible_table({fmt::format("in {}", keys::data::kEval), fmt::format("in {}", keys::data::kTrain)}, 2,
                                 evaluation.duplicate_id_pairs, [](const auto& pair) {
                                   return std::vector<std::string>{pair.first, pair.second};
                                 });
    }
    html += make_hint_paragraph(fmt::format("{} {} {} from the training data.",
                                            format_with_commas(std::ssize(evaluation.ids_with_train_media)),
                                            get_has_or_have(std::ssize(evaluation.ids_with_train_media)),
                                            inspection_.has_grid_rows ? "a volume" : "an image or video"));
    if (!evaluation.ids_with_train_media.empty())
      html += make_details_element("samples", make_duplicate_group_list({evaluation.ids_with_train_media}));
    html += render_shared_subjects(evaluation);
    if (!ledger["problems"].empty()) {
      html += make_collapsible_table({"sample", "message"}, 2, ledger["problems"], [](const ordered_json& problem) {
        return std::vector<std::string>{problem["id"], problem["message"]};
      });
    }
    return make_panel("Evaluation", html) +
           render_notices(evaluation.ledger, fmt::format("Notices of {}", keys::data::kEval));
  }

  /// Returns the overlap of subjects. Subjects, such as patients, in both data sets make scores
  /// look better than they are.
  static std::string render_shared_subjects(const InspectedEvaluation& evaluation) {
    if (!evaluation.has_subjects) return {};
    std::string html = make_hint_paragraph(fmt::format(
        "{} {} of a subject in the training data.", format_with_commas(std::ssize(evaluation.ids_with_train_subjects)),
        get_is_or_are(std::ssize(evaluation.ids_with_train_subjects))));
    if (evaluation.train_subjects.empty()) return html;
    html += make_details_element("samples", make_duplicate_group_list({evaluation.ids_with_train_subjects}));
    html += make_hint_paragraph(
        fmt::format("{} of the subjects {} in both:", format_with_commas(std::ssize(evaluation.train_subjects)),
                    get_is_or_are(std::ssize(evaluation.train_subjects))));
    return html + make_duplicate_group_list({evaluation.train_subjects});
  }

  std::string render_duplicates() const {
    std::string html;
    if (!inspection_.duplicate_samples.empty()) {
      html += make_panel("Duplicate samples",
                         make_hint_paragraph(fmt::format("{} with the text and images of an earlier one.",
                                                         pluralize(inspection_.count_duplicate_samples(), "sample"))) +
                             make_duplicate_group_list(inspection_.duplicate_samples));
    }
    if (!inspection_.duplicate_files.empty()) {
      html += make_panel("Files with the same content", make_duplicate_group_list(inspection_.duplicate_files));
    }
    if (inspection_.num_repeated_ids > 0)
      html += make_panel("Repeated ids", make_hint_paragraph(format_repeated_ids(inspection_)));
    return html;
  }

  std::string render_sample_preview(const SamplePreview& sample) const {
    const std::string title = fmt::format("Sample {}{}", to_printable(sample.id),
                                          sample.task.empty() ? "" : fmt::format(" ({})", to_printable(sample.task)));
    if (!sample.problem.empty())
      return make_panel(title, fmt::format("<p class=\"bad\">{}</p>\n", escape_html_line(sample.problem)));
    std::string summary =
        fmt::format("{} tokens: {} media tokens, {} label tokens (highlighted). {}.",
                    format_with_commas(sample.shape.tokens), format_with_commas(sample.shape.image_tokens),
                    format_with_commas(sample.shape.label_tokens), format_media(sample.shape, inspection_));
    if (sample.shrink_info) {
      summary += fmt::format(" Shrunk, it has {} tokens and {}.", format_with_commas(sample.shrink_info->tokens),
                             format_pixels(sample.shrink_info->pixels));
    }
    return make_panel(
        title,
        make_hint_paragraph(summary) +
            fmt::format("<div class=\"sample{}\"><p class=\"chat\">{}</p><div class=\"pictures\">{}</div></div>\n",
                        sample.media_previews.empty() ? " words" : "",
                        highlight_answers(sample.rendered_chat, "<mark>", "</mark>", escape_html),
                        render_media_previews(sample.media_previews)));
  }

  const Inspection& inspection_;
  const ordered_json ledger_;
};

}  // namespace

std::string render_inspection_page(const Inspection& inspection) {
  const char* const media_note =
      inspection.has_grid_rows
          ? "Volumes are shown as the vision tower's input, resampled and normalized: the middle axial, coronal and "
            "sagittal slices, the subject's right on the left."
          : "Images are shown as the vision tower's input before normalization, pixel for pixel; lines separate the "
            "tiles.";
  const std::string notes = fmt::format(
      "{} The samples shown are the first that training draws. Duplicates are found by hashes.", media_note);
  return fill_page_template(
      "inspection.html",
      {{"title", escape_html_line(inspection.dataset + ": what is trained on")},
       {"style", std::string(resources().at("common.css")) + std::string(resources().at("inspection.css"))},
       {"answer_class", inspection.stops_training ? "fails" : "fits"},
       {"headline", escape_html_line(format_inspection_headline(inspection))},
       {"sections", InspectionPageBuilder(inspection).html()},
       {"notes", escape_html(notes)}});
}

}  // namespace vlmtrain::report
