#include "vlmtrain/report/inspection.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/base64.h"
#include "report/histogram_svg.h"
#include "vlmtrain/image/decode.h"
#include "vlmtrain/report/inspection_page.h"
#include "vlmtrain/report/inspection_text.h"
#include "vlmtrain/report/marked_chat.h"

namespace vlmtrain::report {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kHostile = "<script>alert(1)</script>\x1b[2J";

/// Of twelve samples, with something of everything; the ids of bad ones are hostile.
Inspection example() {
  Inspection found{.dataset = "train.json",
                   .model = "smolvlm-tiny",
                   .chat_template = "the checkpoint's",
                   .ledger = data::Ledger("train.json", 12)};
  for (int64_t i = 0; i < 9; ++i) {
    found.ledger.mark_dropped(i, i == 0 ? kHostile : fmt::format("bad-{}", i), "unreadable image",
                              fmt::format("sample bad-{}: gone-{}.png is not there", i, i));
  }
  found.ledger.mark_shrunk(10, "long",
                           {.tokens = 15'326, .pixels = 12'000'000, .tokens_left = 8'190, .pixels_left = 640});
  found.steps = 7;
  found.global_batch_size = 4;
  found.epochs = 9.33;
  data::Source one, other;
  one.path = "a.json";
  one.weight = 2;
  other.path = "b.json";
  other.weight = 1;
  found.sources = {{.source = one, .records = 10, .usable = 2, .shrunk = 1},
                   {.source = other, .records = 2, .usable = 1}};
  found.tasks = {{.name = "vqa", .samples = 2, .tokens = 300, .label_tokens = 30}, {.name = "none", .samples = 1}};
  found.tokens = data::histogram_of({100, 200, 8'190});
  found.label_tokens = data::histogram_of({10, 10, 10});
  found.images = data::histogram_of({0, 1, 2});
  found.pixel_rows = data::histogram_of({0, 4, 8});
  found.largest = {{.index = 10, .id = "long", .shape = {.tokens = 8'190, .label_tokens = 10, .images = 2}}};
  found.media = 14;
  found.missing_files = {{.path = "gone-0.png", .reason = "No such file or directory", .first = 0, .records = 3}};
  found.missing_in = {kHostile};
  found.same_samples = {{"x", "y", "z"}};
  found.same_files = {{"a.png", "b.png"}};
  found.repeated_ids = 2;
  found.first_repeated_id = "q7";
  found.evaluation = InspectedEvaluation{.name = "test.json",
                                         .ledger = data::Ledger("test.json", 5),
                                         .also_trained = {{"e1", "x"}},
                                         .with_trained_media = {"e1", "e2"}};
  ShownSample shown;
  shown.index = 9;
  shown.id = "shown";
  shown.chat = {.text = "User: <image> a < b?\nAssistant: yes<end>\n", .answers = {{32, 40}}};
  shown.pictures = {{.pixels = at::arange(3 * 4 * 6, at::kByte).view({3, 4, 6}), .tile_height = 2, .tile_width = 3}};
  found.shown = {std::move(shown)};
  return found;
}

/// The same of a family of volumes.
Inspection example_of_volumes() {
  Inspection found = example();
  found.has_grids = true;
  found.images = data::histogram_of({0, 0, 0});
  found.volumes = data::histogram_of({1, 1, 2});
  found.pixel_rows = data::histogram_of({1, 1, 2});
  found.largest[0].shape = {.tokens = 8'190,
                            .label_tokens = 10,
                            .images = 2,
                            .pixel_rows = 2,
                            .row = {.depth = 48, .height = 40, .width = 32},
                            .volumes = 2};
  found.evaluation->names_subjects = true;
  found.evaluation->trained_subjects = {"sub-1"};
  found.evaluation->with_trained_subjects = {"e3", "e4"};
  found.shown[0].shape = found.largest[0].shape;
  found.shown[0].pictures[0].voxels = {48, 40, 32};
  found.shown[0].pictures[0].name = kHostile;
  return found;
}

TEST(InspectionTest, VolumesAreCalledSo) {
  const std::string text = inspection_text(example_of_volumes(), {});
  EXPECT_THAT(text, AllOf(HasSubstr("Volumes: 1 to 2 a sample"), HasSubstr("labels volumes"), HasSubstr("grids"),
                          HasSubstr("2 volumes of\n48x40x32"), HasSubstr("have a volume that is trained on"),
                          HasSubstr("of volumes the headers were read")));
  EXPECT_THAT(text, AllOf(Not(HasSubstr("Tiles:")), Not(HasSubstr("Grids:")), Not(HasSubstr("Images:"))));
  Inspection series = example_of_volumes();
  series.pixel_rows = data::histogram_of({1, 1, 8});
  EXPECT_THAT(inspection_text(series, {}), HasSubstr("Grids: 1 to 8 a sample"));
  EXPECT_THAT(inspection_html(example_of_volumes()),
              AllOf(HasSubstr("volume 1: 48 × 40 × 32, &lt;script&gt;"), Not(HasSubstr(kHostile))));
}

TEST(InspectionTest, SubjectsInBothAreTold) {
  const auto found = example_of_volumes();
  EXPECT_THAT(inspection_text(found, {}), AllOf(HasSubstr("2  are of a subject that is trained on: e3, e4"),
                                                HasSubstr("1  of the subjects are in both: sub-1")));
  EXPECT_THAT(inspection_html(found),
              AllOf(HasSubstr("2 are of a subject that is trained on."), HasSubstr("<li>sub-1</li>")));
  const auto json = found.to_json();
  EXPECT_EQ(json["evaluation"]["trained_subjects"].dump(), R"(["sub-1"])");
  EXPECT_EQ(json["evaluation"]["with_trained_subjects"].dump(), R"(["e3","e4"])");
  EXPECT_EQ(json["shown"][0]["pictures"][0]["voxels"].dump(), "[48,40,32]");
  EXPECT_THAT(inspection_text(example(), {}), Not(HasSubstr("subject"))) << "where none is named";
}

TEST(InspectionTest, JsonHasAllOfIt) {
  const auto json = example().to_json();
  EXPECT_EQ(json["samples"], 12);
  EXPECT_EQ(json["usable"], 3);
  EXPECT_EQ(json["ledger"]["problems"].size(), 9U);
  EXPECT_EQ(json["same_samples"]["repeated"], 2);
  EXPECT_EQ(json["histograms"]["images"]["bins"].dump(), "[[0,0,1],[1,1,1],[2,2,1]]");
  EXPECT_EQ(json["shown"][0]["label_spans"].dump(), "[[32,40]]");
  EXPECT_EQ(json["largest"][0]["predicted_bytes"], nullptr);
  EXPECT_EQ(json["packs"], nullptr);
}

TEST(InspectionTest, NoticesAreInTextJsonAndPage) {
  Inspection found = example();
  data::NoticeCounts notices, of_evaluation;
  notices.add("long", {{R"(key "source" of a record)", kHostile}});
  notices.add("other", {{R"(key "source" of a record)", "web"}});
  of_evaluation.add("e3", {{"frames that are not looked at", "3 of 8"}});
  found.ledger.enter_notices(notices);
  found.evaluation->ledger.enter_notices(of_evaluation);
  const std::string text = inspection_text(found, {.width = 100});
  EXPECT_THAT(text, AllOf(HasSubstr("Notices: 1 kind"), HasSubstr(R"(2  key "source" of a record is not read (long)"),
                          HasSubstr("data.ignore_keys"), HasSubstr("Notices of data.eval: 1 kind"),
                          HasSubstr("1  frames that are not looked at (e3: 3 of 8)"), Not(HasSubstr("\x1b[2J"))));
  const std::string page = inspection_html(found);
  EXPECT_THAT(page, AllOf(HasSubstr("&quot;source&quot; of a record is not read"),
                          HasSubstr("frames that are not looked at"), Not(HasSubstr("<script"))));
  const auto json = found.to_json();
  EXPECT_EQ(json["ledger"]["notices"][0]["samples"], 2);
  EXPECT_EQ(json["evaluation"]["ledger"]["notices"][0]["example"]["value"], "3 of 8");
  EXPECT_THAT(inspection_text(example(), {}), Not(HasSubstr("Notices"))) << "where there are none";
}

TEST(InspectionTest, ADataSetWithoutMediaAndSettingsWithoutEffectAreSaid) {
  Inspection found = example();
  EXPECT_THAT(inspection_headline(found), Not(HasSubstr("none of them has an image")));
  found.sources[1].without_media = 1;
  found.without_media = 1;
  EXPECT_THAT(inspection_text(found, {}), HasSubstr("no media weight 1"));
  EXPECT_THAT(inspection_headline(found), Not(HasSubstr("none of them has an image")));
  found.without_media = 3;
  found.remarks = {"data.video_fps=1.0 has no effect: no sample has a video"};
  found.evaluation->without_media = 5;
  EXPECT_THAT(inspection_headline(found), HasSubstr("none of them has an image, video or volume"));
  EXPECT_THAT(inspection_text(found, {.width = 100}),
              AllOf(HasSubstr("Settings without effect"), HasSubstr("data.video_fps=1.0 has no effect"),
                    HasSubstr("5  have no image, video or volume")));
  EXPECT_THAT(inspection_html(found),
              AllOf(HasSubstr("data.video_fps=1.0 has no effect"), HasSubstr("5 have no image, video or volume")));
  const auto json = found.to_json();
  EXPECT_EQ(json["without_media"], 3);
  EXPECT_EQ(json["sources"][1]["without_media"], 1);
  EXPECT_EQ(json["evaluation"]["without_media"], 5);
  EXPECT_EQ(json["without_effect"][0], found.remarks[0]);
}

TEST(InspectionTest, TextNamesTheFirstAndCountsTheRest) {
  const std::string text = inspection_text(example(), {});
  EXPECT_THAT(text,
              AllOf(HasSubstr("12 samples, 3 of which can be used; 9 are dropped"), HasSubstr("9  unreadable image"),
                    HasSubstr("gone-4.png"), Not(HasSubstr("gone-5.png")), HasSubstr("and 4 more: --json, --html")));
  EXPECT_THAT(text, AllOf(HasSubstr("7 steps of 4 samples, 9.33 epochs"), HasSubstr("weight 2"),
                          HasSubstr("long: 15,326 → 8,190 tokens, 12.0 million pixels → 640 pixels"),
                          HasSubstr("2 samples have the words and pictures of an earlier one"), HasSubstr("x, y, z"),
                          HasSubstr("a.png, b.png"), HasSubstr("2 ids are those of several samples, the first is q7"),
                          HasSubstr("1  are trained on too"), HasSubstr("Assistant: ⟦yes<end>⟧")));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(inspection_text(example(), {.colour = true}), HasSubstr("\x1b[1;32m12 samples"));
}

TEST(InspectionTest, TextStaysInTheTerminal) {
  for (const int width : {64, 100}) {
    const std::string text = inspection_text(example(), {.unicode = false, .width = width});
    std::istringstream lines(text.substr(0, text.find("Sample shown")));
    for (std::string line; std::getline(lines, line);) {
      const auto columns = std::ranges::count_if(line, [](unsigned char byte) { return (byte & 0xc0) != 0x80; });
      EXPECT_LE(columns, std::max(width, 78)) << line;
    }
  }
}

TEST(InspectionTest, PageHasAllIdsAndNothingThatRuns) {
  const std::string page = inspection_html(example());
  EXPECT_THAT(page, AllOf(HasSubstr("bad-8"), HasSubstr("gone-8.png"), HasSubstr("&lt;script&gt;alert"),
                          Not(HasSubstr("<script")), Not(HasSubstr("\x1b")), Not(HasSubstr("://"))));
  EXPECT_THAT(page, AllOf(HasSubstr("a &lt; b?"), HasSubstr("<mark>yes&lt;end&gt;</mark>")));
  EXPECT_THAT(page.substr(0, 4096), HasSubstr(kInspectionTitle)) << "what is overwritten is known by it";
}

TEST(InspectionTest, PageHasThePictureToTheByte) {
  const Inspection found = example();
  const std::string page = inspection_html(found);
  const std::string begin = "data:image/png;base64,";
  const size_t first = page.find(begin) + begin.size();
  const std::string bytes = base64_decoded(std::string_view(page).substr(first, page.find('"', first) - first));
  const at::Tensor picture = image::decode_image(std::as_bytes(std::span(bytes)), "the page's picture");
  EXPECT_TRUE(at::equal(picture, found.shown[0].pictures[0].pixels));
  EXPECT_THAT(page, HasSubstr("d=\"M0 2H6M3 0V4\"")) << "between its four tiles";
}

TEST(InspectionTest, WhatStopsARunIsSaid) {
  Inspection found = example();
  found.ledger.mark_failed(11, "worst", "too long", "sample worst is long");
  found.stops_run = true;
  EXPECT_EQ(inspection_headline(found),
            "12 samples, 2 of which can be used; 1 would stop training (data.on_bad_sample=fail), 9 are dropped");
}

TEST(InspectionTest, PacksSayWhatBindsThem) {
  Inspection found = example();
  found.pack_limits = data::PackLimits{.tokens = 4096, .images = 18};
  found.packs.fill = {.packs = 10, .tokens = 0.5, .images = 1, .most_tiles = 90, .bound_by_media = 9};
  found.packs.packs = {{.tokens = 2048, .images = 18, .tiles = 90}};
  found.packs.bound_by_images = 9;
  EXPECT_THAT(inspection_text(found, {.width = 1000}), HasSubstr("tokens in 1, images in 9"));
  EXPECT_EQ(found.to_json()["packs"]["bound_by"].dump(), R"({"tokens":1,"images":9,"tiles":0})");
}

TEST(HistogramSvgTest, EachBinHasABarAndItsNumbers) {
  const std::string svg = histogram_svg(data::histogram_of({1, 1, 2, 4}));
  EXPECT_THAT(svg, AllOf(HasSubstr("<title>1: 2 samples</title>"), HasSubstr("<title>3: 0 samples</title>"),
                         HasSubstr("<title>4: 1 sample</title>")));
}

TEST(MarkedChatTest, AnswersAreBetweenMarks) {
  const text::RenderedChat chat{.text = "Q: a A: b Q: c A: d", .answers = {{8, 9}, {18, 19}}};
  EXPECT_EQ(marked_chat(chat), "Q: a A: ⟦b⟧ Q: c A: ⟦d⟧");
}

}  // namespace
}  // namespace vlmtrain::report
