#include "vlmtrain/report/inspection.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/format/html.h"
#include "report/format/sections.h"
#include "report/format/text_layout.h"
#include "vlmtrain/base/base64.h"
#include "vlmtrain/image/image_file.h"

namespace vlmtrain::report {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kHostile = "<script>alert(1)</script>\x1b[2J";

/// Twelve samples with every kind of content. The ids of bad ones are hostile.
Inspection make_example() {
  Inspection inspection{.dataset = "train.json",
                        .model = "smolvlm-tiny",
                        .chat_template = "the checkpoint's",
                        .ledger = data::Ledger("train.json", 12)};
  for (int64_t i = 0; i < 9; ++i) {
    inspection.ledger.mark_dropped(i, i == 0 ? kHostile : fmt::format("bad-{}", i), "unreadable image",
                                   fmt::format("sample bad-{}: gone-{}.png is not there", i, i));
  }
  inspection.ledger.mark_shrunk(10, "long",
                                {.tokens = 15'326, .pixels = 12'000'000, .tokens_after = 8'190, .pixels_after = 640});
  inspection.steps = 7;
  inspection.global_batch_size = 4;
  inspection.epochs = 9.33;
  data::Source first_source, second_source;
  first_source.path = "a.json";
  first_source.weight = 2;
  second_source.path = "b.json";
  second_source.weight = 1;
  inspection.sources = {{.source = first_source, .num_records = 10, .num_usable_samples = 2, .num_shrunk_samples = 1},
                        {.source = second_source, .num_records = 2, .num_usable_samples = 1}};
  inspection.tasks = {{.name = "vqa", .samples = 2, .tokens = 300, .label_tokens = 30}, {.name = "none", .samples = 1}};
  inspection.tokens = data::make_histogram({100, 200, 8'190});
  inspection.label_tokens = data::make_histogram({10, 10, 10});
  inspection.images = data::make_histogram({0, 1, 2});
  inspection.pixel_rows = data::make_histogram({0, 4, 8});
  inspection.largest_samples = {
      {.index = 10, .id = "long", .shape = {.tokens = 8'190, .label_tokens = 10, .num_images = 2}}};
  inspection.num_distinct_media = 14;
  inspection.missing_files = {
      {.path = "gone-0.png", .reason = "No such file or directory", .first_record_index = 0, .num_records = 3}};
  inspection.missing_file_sample_ids = {kHostile};
  inspection.duplicate_samples = {{"x", "y", "z"}};
  inspection.duplicate_files = {{"a.png", "b.png"}};
  inspection.num_repeated_ids = 2;
  inspection.first_repeated_id = "q7";
  inspection.evaluation = InspectedEvaluation{.name = "test.json",
                                              .ledger = data::Ledger("test.json", 5),
                                              .duplicate_id_pairs = {{"e1", "x"}},
                                              .ids_with_train_media = {"e1", "e2"}};
  SamplePreview sample;
  sample.index = 9;
  sample.id = "shown";
  sample.rendered_chat = {.text = "User: <image> a < b?\nAssistant: yes<end>\n", .answers = {{32, 40}}};
  sample.media_previews = {
      {.pixels = at::arange(3 * 4 * 6, at::kByte).view({3, 4, 6}), .tile_height = 2, .tile_width = 3}};
  inspection.sample_previews = {std::move(sample)};
  return inspection;
}

/// The same for a family of volumes.
Inspection make_volume_example() {
  Inspection inspection = make_example();
  inspection.has_grid_rows = true;
  inspection.images = data::make_histogram({0, 0, 0});
  inspection.volumes = data::make_histogram({1, 1, 2});
  inspection.pixel_rows = data::make_histogram({1, 1, 2});
  inspection.largest_samples[0].shape = {.tokens = 8'190,
                                         .label_tokens = 10,
                                         .pixel_rows = 2,
                                         .row = {.depth = 48, .height = 40, .width = 32},
                                         .num_volumes = 2};
  inspection.evaluation->has_subjects = true;
  inspection.evaluation->train_subjects = {"sub-1"};
  inspection.evaluation->ids_with_train_subjects = {"e3", "e4"};
  inspection.sample_previews[0].shape = inspection.largest_samples[0].shape;
  inspection.sample_previews[0].media_previews[0].volume_size = {48, 40, 32};
  inspection.sample_previews[0].media_previews[0].name = kHostile;
  return inspection;
}

TEST(InspectionTest, VolumesAreReportedAsVolumes) {
  const std::string text = format_inspection(make_volume_example(), {});
  EXPECT_THAT(text, AllOf(HasSubstr("Volumes per sample\n  1 to 2 per sample"), HasSubstr("labels  volumes  grids"),
                          HasSubstr("2 volumes of 48x40x32\n"), HasSubstr("with a volume from the training data"),
                          HasSubstr("14 different volumes, only the headers were read")));
  EXPECT_THAT(text, AllOf(Not(HasSubstr("Tiles per")), Not(HasSubstr("Grids per")), Not(HasSubstr("Images per"))));
  Inspection series = make_volume_example();
  series.pixel_rows = data::make_histogram({1, 1, 8});
  EXPECT_THAT(format_inspection(series, {}), HasSubstr("Grids per sample\n  1 to 8 per sample"));
  EXPECT_THAT(render_inspection_page(make_volume_example()),
              AllOf(HasSubstr("volume 1: 48 × 40 × 32, &lt;script&gt;"), Not(HasSubstr(kHostile))));
}

TEST(InspectionTest, SubjectsInBothSetsAreReported) {
  const auto inspection = make_volume_example();
  EXPECT_THAT(format_inspection(inspection, {}), AllOf(ContainsRegex("2  of a subject in the training data +e3, e4\n"),
                                                       ContainsRegex("1  subjects in both +sub-1\n")));
  EXPECT_THAT(render_inspection_page(inspection),
              AllOf(HasSubstr("<td>2</td><td class=\"text\">of a subject in the training data</td>"),
                    HasSubstr("<td class=\"text\">sub-1</td>")));
  const auto json = inspection.to_json();
  EXPECT_EQ(json["evaluation"]["trained_subjects"].dump(), R"(["sub-1"])");
  EXPECT_EQ(json["evaluation"]["with_trained_subjects"].dump(), R"(["e3","e4"])");
  EXPECT_EQ(json["shown"][0]["media"][0]["voxels"].dump(), "[48,40,32]");
  EXPECT_THAT(format_inspection(make_example(), {}), Not(HasSubstr("subject"))) << "if no record has one";
}

TEST(InspectionTest, JsonIsComplete) {
  const auto json = make_example().to_json();
  EXPECT_EQ(json["samples"], 12);
  EXPECT_EQ(json["usable"], 3);
  EXPECT_EQ(json["ledger"]["problems"].size(), 9U);
  EXPECT_EQ(json["same_samples"]["repeated"], 2);
  EXPECT_EQ(json["histograms"]["images"]["bins"].dump(), "[[0,0,1],[1,1,1],[2,2,1]]");
  EXPECT_EQ(json["shown"][0]["label_spans"].dump(), "[[32,40]]");
  EXPECT_FALSE(json["shown"][0].contains("label_weights"));
  Inspection weighted = make_example();
  weighted.sample_previews[0].rendered_chat.answer_weights = {0.5};
  EXPECT_EQ(weighted.to_json()["shown"][0]["label_weights"].dump(), "[0.5]");
  EXPECT_EQ(json["largest"][0]["predicted_bytes"], nullptr);
  EXPECT_EQ(json["packs"], nullptr);
}

TEST(InspectionTest, ReportsNotices) {
  Inspection inspection = make_example();
  data::NoticeCounts notices, evaluation_notices;
  notices.add("long", {{R"(key "source" of a record)", kHostile}});
  notices.add("other", {{R"(key "source" of a record)", "web"}});
  evaluation_notices.add("e3", {{"frames that are not looked at", "3 of 8"}});
  inspection.ledger.set_precounted_notices(notices);
  inspection.evaluation->ledger.set_precounted_notices(evaluation_notices);
  const std::string text = format_inspection(inspection, {.width = 100});
  EXPECT_THAT(text, AllOf(HasSubstr("Notices: 1 kind"), ContainsRegex(R"(2  key "source" of a record is .* long: )"),
                          HasSubstr("data.ignore_keys"), HasSubstr("Notices of data.eval: 1 kind"),
                          ContainsRegex("1  frames that are not looked at +e3: 3 of 8\n"), Not(HasSubstr("\x1b[2J"))));
  const std::string page = render_inspection_page(inspection);
  EXPECT_THAT(page, AllOf(HasSubstr("&quot;source&quot; of a record is not read"),
                          HasSubstr("frames that are not looked at"), Not(HasSubstr("<script"))));
  const auto json = inspection.to_json();
  EXPECT_EQ(json["ledger"]["notices"][0]["samples"], 2);
  EXPECT_EQ(json["evaluation"]["ledger"]["notices"][0]["example"]["value"], "3 of 8");
  EXPECT_THAT(format_inspection(make_example(), {}), Not(HasSubstr("Notices"))) << "without notices";
}

TEST(InspectionTest, ReportsMissingMediaAndUnusedSettings) {
  Inspection inspection = make_example();
  EXPECT_THAT(format_inspection_headline(inspection), Not(HasSubstr("none of them has an image")));
  inspection.sources[1].num_samples_without_media = 1;
  inspection.num_samples_without_media = 1;
  EXPECT_THAT(format_inspection(inspection, {}), ContainsRegex("b.json +weight 1 +2 +1 +0 +1\n"));
  EXPECT_THAT(format_inspection_headline(inspection), Not(HasSubstr("none of them has an image")));
  inspection.num_samples_without_media = 3;
  inspection.remarks = {"data.video_fps=1.0 has no effect: no sample has a video"};
  inspection.evaluation->num_samples_without_media = 5;
  EXPECT_THAT(format_inspection_headline(inspection), HasSubstr("none of them has an image, video or volume"));
  EXPECT_THAT(format_inspection(inspection, {.width = 100}),
              AllOf(HasSubstr("Settings without effect"), HasSubstr("data.video_fps=1.0 has no effect"),
                    HasSubstr("5  without image, video or volume")));
  EXPECT_THAT(render_inspection_page(inspection),
              AllOf(HasSubstr("data.video_fps=1.0 has no effect"),
                    HasSubstr("<td>5</td><td class=\"text\">without image, video or volume</td>")));
  const auto json = inspection.to_json();
  EXPECT_EQ(json["without_media"], 3);
  EXPECT_EQ(json["sources"][1]["without_media"], 1);
  EXPECT_EQ(json["evaluation"]["without_media"], 5);
  EXPECT_EQ(json["without_effect"][0], inspection.remarks[0]);
}

TEST(InspectionTest, TextListsTheFirstAndCountsTheRest) {
  const std::string text = format_inspection(make_example(), {});
  EXPECT_THAT(text,
              AllOf(HasSubstr("12 samples, 3 of which can be used; 9 are dropped"), HasSubstr("9  unreadable image"),
                    HasSubstr("gone-4.png"), Not(HasSubstr("gone-5.png")), HasSubstr("and 4 more: --json, --html")));
  EXPECT_THAT(text,
              AllOf(HasSubstr("7 steps of 4 samples, 9.33 epochs"), HasSubstr("weight 2"),
                    HasSubstr("Missing files: 1\n"), HasSubstr("Shrunk to fit data.max_length: 1 sample\n"),
                    ContainsRegex("long +8,190 +15,326 +640 pixels +12.0 million pixels\n"),
                    HasSubstr("2 samples have the text and images of an earlier one"), HasSubstr("3  x, y, z"),
                    HasSubstr("2  a.png, b.png"), HasSubstr("2 ids are shared by several samples, the first is q7"),
                    ContainsRegex("1  also in the training data, .* e1 = x\n"), HasSubstr("Assistant: ⟦yes<end>⟧")));
  EXPECT_THAT(text, ContainsRegex("Label tokens are inside ⟦…⟧\\.\n(.*\n)*.*Assistant: ⟦yes"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(format_inspection(make_example(), {.color = true}), HasSubstr("\x1b[1;32m12 samples"));
}

TEST(InspectionTest, TextFitsTheTerminal) {
  for (const int width : {64, 100}) {
    std::istringstream lines(format_inspection(make_example(), {.unicode = false, .width = width}));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(count_columns(line), width) << line;
  }
}

TEST(SectionsTest, TextColumnsWrapAndEmptyOnesAreOmitted) {
  const Table table{.headers = {"name", "none", "number", "text"},
                    .alignment = "lrrl",
                    .rows = {{{"a", "", "12", std::string(40, 'x') + " " + std::string(40, 'y')}},
                             {{"b", "", "3", "short"}, Emphasis::kFaint}}};
  TextWriter writer({.color = true, .width = 64});
  writer.add_table(table);
  EXPECT_EQ(writer.text(), "\x1b[2m  name  number  text\x1b[0m\n  a         12  " + std::string(40, 'x') +
                               "\n                " + std::string(40, 'y') + "\n\x1b[2m  b          3  short\x1b[0m\n");
  EXPECT_THAT(render_section_html({.title = "t", .tables = {table}}),
              HasSubstr("<th class=\"text\">name</th><th>number</th><th class=\"text\">text</th>"));
}

TEST(SectionsTest, PagesCollapseLongListsAndCells) {
  Table table{.headers = {"name"}, .max_terminal_rows = 5};
  for (int i = 0; i < 13; ++i) table.rows.push_back({{fmt::format("row-{}", i)}});
  table.rows.push_back({{std::string(400, 'x')}});
  const std::string html = render_section_html({.title = "t", .tables = {table}});
  EXPECT_THAT(html,
              AllOf(HasSubstr("<details><summary>4 more</summary><table>"), HasSubstr("row-12"),
                    HasSubstr("<details><summary>" + std::string(300, 'x') + "…</summary>" + std::string(400, 'x'))));
  table.max_terminal_rows = SIZE_MAX;
  EXPECT_THAT(render_section_html({.title = "t", .tables = {table}}), Not(HasSubstr("more</summary>")));
}

TEST(InspectionTest, PageListsAllIdsAndHasNoScripts) {
  const std::string page = render_inspection_page(make_example());
  EXPECT_THAT(page, AllOf(HasSubstr("bad-8"), HasSubstr("gone-8.png"), HasSubstr("&lt;script&gt;alert"),
                          Not(HasSubstr("<script")), Not(HasSubstr("\x1b")), Not(HasSubstr("://"))));
  EXPECT_THAT(page, AllOf(HasSubstr("a &lt; b?"), HasSubstr("<mark>yes&lt;end&gt;</mark>")));
  EXPECT_THAT(page.substr(0, 4096), HasSubstr(kInspectionTitleSuffix)) << "identifies a page that may be overwritten";
}

TEST(InspectionTest, PageHasTheExactPixels) {
  const Inspection inspection = make_example();
  const std::string page = render_inspection_page(inspection);
  const std::string begin = "data:image/png;base64,";
  const size_t first = page.find(begin) + begin.size();
  const std::string bytes = base64_decode(std::string_view(page).substr(first, page.find('"', first) - first)).value();
  const at::Tensor decoded_image = image::decode_image(std::as_bytes(std::span(bytes)), "the page's image");
  EXPECT_TRUE(at::equal(decoded_image, inspection.sample_previews[0].media_previews[0].pixels));
  EXPECT_THAT(page, HasSubstr("d=\"M0 2H6M3 0V4\"")) << "between its four tiles";
}

TEST(InspectionTest, ReportsWhatStopsTraining) {
  Inspection inspection = make_example();
  inspection.ledger.mark_failed(11, "worst", "too long", "sample worst is long");
  inspection.stops_training = true;
  EXPECT_EQ(format_inspection_headline(inspection),
            "12 samples, 2 of which can be used; 1 would stop training (data.on_bad_sample=fail), 9 are dropped");
}

TEST(InspectionTest, ReportsWhatLimitsPacks) {
  Inspection inspection = make_example();
  inspection.pack_limits = data::PackLimits{.max_tokens = 4096, .max_media = 18};
  inspection.pack_statistics.fill = {
      .num_packs = 10, .token_fill = 0.5, .media_fill = 1, .max_tiles = 90, .num_media_limited_packs = 9};
  inspection.pack_statistics.pack_sizes = {{.tokens = 2048, .num_media = 18, .tiles = 90}};
  inspection.pack_statistics.num_packs_at_media_limit = 9;
  inspection.largest_pack_sample_ids = {"p1", "p2"};
  EXPECT_THAT(format_inspection(inspection, {.width = 1000}),
              AllOf(ContainsRegex("tokens +4,096   50.0 % +1\n"), ContainsRegex("images +18  100.0 % +9\n"),
                    HasSubstr("10 packs in the first epoch. The largest pack has 90 tiles: samples p1, p2.")));
  EXPECT_EQ(inspection.to_json()["packs"]["bound_by"].dump(), R"({"tokens":1,"images":9,"tiles":0})");
}

TEST(InspectionTest, HistogramsHaveABarForEachBin) {
  Inspection inspection = make_example();
  inspection.tokens = data::make_histogram({1, 1, 2, 4});
  EXPECT_THAT(format_inspection(inspection, {.unicode = false}),
              ContainsRegex("\n  1  2  ####+\n  2  1  ##+\n  3  0\n  4  1  ##+\n"));
  EXPECT_THAT(render_inspection_page(inspection),
              HasSubstr("<tr><td>1</td><td>2</td><td class=\"bar\"><div style=\"width:100.0%\"></div></td></tr>\n"
                        "<tr><td>2</td><td>1</td><td class=\"bar\"><div style=\"width:50.0%\"></div></td></tr>\n"
                        "<tr><td>3</td><td>0</td></tr>"));
}

TEST(MarkAnswersTest, AnswersAreMarked) {
  const text::RenderedChat chat{.text = "Q: a A: b Q: c A: d", .answers = {{8, 9}, {18, 19}}};
  EXPECT_EQ(highlight_answers(chat), "Q: a A: ⟦b⟧ Q: c A: ⟦d⟧");
  const text::RenderedChat weighted{.text = chat.text, .answers = chat.answers, .answer_weights = {0.3F, 1}};
  EXPECT_EQ(highlight_answers(weighted), "Q: a A: ⟦b⟧×0.3 Q: c A: ⟦d⟧");
}

}  // namespace
}  // namespace vlmtrain::report
