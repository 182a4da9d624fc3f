#include <fmt/format.h>

#include <map>
#include <set>

#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

using nlohmann::ordered_json;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

/// Runs `vlmtrain inspect` on the eleven records, and on a data set with every defect.
class InspectTest : public CommandTest {
 protected:
  Result inspect(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"inspect", "--config", "train.yaml"});
    return run(arguments);
  }

  ordered_json inspect_json(std::vector<std::string> arguments, int exit_code) const {
    arguments.emplace_back("--json");
    const Result result = inspect(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_EQ(split_lines(result.out).size(), 1U) << result.out;
    return ordered_json::parse(result.out);
  }

  static ordered_json question(const std::string& id, const std::string& image, const std::string& text = "What?") {
    ordered_json record{{"id", id}};
    if (!image.empty()) record["image"] = image;
    record["conversations"] = {{{"from", "human"}, {"value", (image.empty() ? "" : "<image>\n") + text}},
                               {{"from", "gpt"}, {"value", "This."}}};
    return record;
  }

  /// Writes the eleven records, two of which are one token too long, and eight more.
  void write_defects() const {
    const std::string tall = read_text(folder() / "images/tall.jpg");
    write_text(folder() / "images/cut.jpg", tall.substr(0, tall.size() - 400));
    write_text(folder() / "images/copy.jpg", tall);
    write_text(folder() / "images/text.png", "not a picture");
    std::string endless = "Why?";
    for (int i = 0; i < 400; ++i) endless += " Really?";
    std::string lines;
    for (const auto& record : records()) lines += record.dump() + "\n";
    for (const auto& record :
         {question("tall", "tall.jpg"), question("copy", "copy.jpg"), question("gone", "gone.png"),
          question("gone-too", "gone.png"), question("text", "text.png"), question("endless", "", endless),
          question("cut", "cut.jpg"), question("cut-too", "cut.jpg", "Who?")}) {
      lines += record.dump() + "\n";
    }
    lines += "{\"id\": \"broken\", \"conversations\": [\n";
    write_text(folder() / "defects.jsonl", lines);
  }
  static constexpr int kDefective = kRecords + 9;
  const std::vector<std::string> skip_{"data.train=defects.jsonl", "data.max_length=164", "data.on_bad_sample=skip"};

  std::vector<std::string> with_skip(std::vector<std::string> more) const {
    more.insert(more.end(), skip_.begin(), skip_.end());
    return more;
  }

  static std::set<std::string> list_ids(const ordered_json& list) {
    std::set<std::string> ids;
    for (const auto& entry : list) ids.insert(entry.at("id").get<std::string>());
    return ids;
  }
};

TEST_F(InspectTest, CountsDefectsLikeTheLedger) {
  write_defects();
  const auto inspection = inspect_json(with_skip({"--decode"}), 0);
  EXPECT_EQ(inspection["samples"], kDefective);
  EXPECT_EQ(inspection["usable"], 13);
  EXPECT_EQ(inspection["decoded"], true);
  EXPECT_EQ(inspection["stops_run"], false);
  EXPECT_EQ(inspection["ledger"]["reasons"].dump(), R"({"too long":1,"unreadable image":5,"unusable record":1})");
  EXPECT_EQ(list_ids(inspection["ledger"]["problems"]),
            (std::set<std::string>{"gone", "gone-too", "text", "endless", "cut", "cut-too", "defects:19"}));
  EXPECT_EQ(list_ids(inspection["ledger"]["shrunk"]["each"]), (std::set<std::string>{"sample-3", "sample-7"}));
  ASSERT_THAT(inspection["missing_files"], SizeIs(1));
  EXPECT_EQ(inspection["missing_files"][0]["file"], "images/gone.png");
  EXPECT_EQ(inspection["missing_files"][0]["reason"], "No such file or directory");
  EXPECT_EQ(inspection["missing_files"][0]["first_id"], "gone");
  EXPECT_EQ(inspection["missing_files"][0]["samples"], 2);
  EXPECT_EQ(inspection["same_samples"]["repeated"], 9);
  EXPECT_EQ(inspection["same_samples"]["groups"].dump(),
            R"([["sample-0","sample-4","sample-8"],["sample-1","sample-5","sample-9"],)"
            R"(["sample-2","sample-6","sample-10"],["sample-3","sample-7"],["tall","copy"],["gone","gone-too"]])");
  EXPECT_EQ(inspection["same_files"].dump(), R"([["images/copy.jpg","images/tall.jpg"]])");
  EXPECT_EQ(inspection["media"], 7) << "small, strip, tall, copy, gone, text and cut";
  // All samples of data.eval are training samples.
  EXPECT_THAT(inspection["evaluation"]["train_duplicates"], SizeIs(kRecords));
  EXPECT_EQ(inspection["evaluation"]["ledger"]["samples"], kRecords);

  // The run finds the two truncated images only when it decodes them, all other defects at its
  // start.
  const auto headers = inspect_json(with_skip({}), 0);
  EXPECT_EQ(headers["usable"], 15);
  EXPECT_EQ(list_ids(headers["ledger"]["problems"]),
            (std::set<std::string>{"gone", "gone-too", "text", "endless", "defects:19"}));
  train_well(with_skip({"training.max_steps=9"}));
  const auto ledger = json_file("run/ledger.json");
  EXPECT_EQ(ledger["used"], inspection["usable"]);
  EXPECT_EQ(ledger["problems"], inspection["ledger"]["problems"]);
  EXPECT_EQ(ledger["reasons"], inspection["ledger"]["reasons"]);
  EXPECT_EQ(ledger["shrunk"], inspection["ledger"]["shrunk"]);
}

TEST_F(InspectTest, ReportsWhatStopsARun) {
  write_defects();
  const std::vector<std::string> fail{"data.train=defects.jsonl", "data.max_length=164"};
  const auto inspection = inspect_json(fail, 4);
  EXPECT_EQ(inspection["stops_run"], true);
  EXPECT_EQ(inspection["ledger"]["failed"], 5);
  EXPECT_EQ(train(fail).exit_code, 4);
  const auto ledger = json_file("run/ledger.json");
  EXPECT_EQ(ledger["problems"], inspection["ledger"]["problems"]);
  EXPECT_EQ(
      inspect({"data.train=defects.jsonl", "data.max_length=164", "data.on_too_long=drop", "data.on_bad_sample=skip"})
          .exit_code,
      0);
}

TEST_F(InspectTest, ShowsTheFirstSamples) {
  train_well({"training.max_steps=1"});
  std::set<std::string> first;
  for (const auto& id : step_lines("run/samples.jsonl").front().at("ids")) first.insert(id.get<std::string>());
  const auto inspection = inspect_json({"--samples", "4", "--record", "sample-3", "--record", "1"}, 0);
  ASSERT_GE(inspection["shown"].size(), 4U);
  EXPECT_EQ(inspection["shown"][0]["id"], "sample-3");
  EXPECT_EQ(inspection["shown"][1]["id"], "sample-0");
  auto shown_ids = list_ids(inspection["shown"]);
  EXPECT_TRUE(std::ranges::includes(shown_ids, first));
  for (const auto& sample : inspection["shown"]) {
    std::string label_text;
    for (const auto& span : sample["label_spans"]) {
      const auto text = sample["text"].get<std::string>();
      label_text += text.substr(span[0], span[1].get<size_t>() - span[0].get<size_t>());
    }
    EXPECT_EQ(sample["label_text"], label_text) << "tokens and marks agree";
    EXPECT_EQ(sample["media"].empty(), sample["images"] == 0);
  }
  EXPECT_THAT(inspection["shown"][0]["media"], SizeIs(4)) << "two images, each in tiles and as a whole";
}

TEST_F(InspectTest, PageIsSelfContained) {
  const Result result = inspect({"--html", "page.html", "--record", "sample-3"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string page = read_text(folder() / "page.html");
  EXPECT_THAT(page, AllOf(HasSubstr("data:image/png;base64,iVBOR"), HasSubstr("<mark>"), HasSubstr("sample-3"),
                          Not(HasSubstr("<script")), Not(HasSubstr("://"))));
  // The file is rewritten, but another file is never overwritten.
  EXPECT_EQ(inspect({"--html", "page.html"}).exit_code, 0);
  const Result refused = inspect({"--html", "train.json"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--html: train.json exists but does not contain a page of inspect"));
}

TEST_F(InspectTest, TextIsPlainWithoutATerminal) {
  write_defects();
  const Result result = inspect(with_skip({}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("20 samples, 15 of which can be used; 5 are dropped"), HasSubstr("unreadable image"),
                    HasSubstr("images/gone.png"), HasSubstr("⟦"), Not(HasSubstr("\x1b"))));
  for (const auto& line : split_lines(result.out)) EXPECT_THAT(line, Not(testing::EndsWith(" "))) << line;
}

TEST_F(InspectTest, UsesTheCacheOfARun) {
  train_well({"training.max_steps=1"});
  const std::string cache_content = read_text(folder() / "run/data_check.jsonl");
  const Result cached = inspect({});
  EXPECT_THAT(cached.err, HasSubstr("11 samples checked in 0.0 s, 11 of them unchanged"));
  EXPECT_THAT(inspect({"data.max_length=164"}).err, Not(HasSubstr("unchanged")));
  EXPECT_EQ(read_text(folder() / "run/data_check.jsonl"), cache_content) << "inspect writes nothing";
}

TEST_F(InspectTest, ReportsThePacksOfTheRun) {
  const std::vector<std::string> packing{"data.packing=true", "data.pack_max_tokens=330", "data.pack_max_images=3",
                                         "training.max_steps=1"};
  const Result result = train(packing);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto packs = inspect_json(packing, 0)["packs"];
  EXPECT_THAT(result.err,
              HasSubstr(fmt::format("packs: {} of 11 samples in the first epoch; {:.1f} % of 330 tokens and {:.1f} % "
                                    "of 3 images are used; {} are full because of their images",
                                    packs["packs"].get<int>(), 100 * packs["tokens_filled"].get<double>(),
                                    100 * packs["images_filled"].get<double>(),
                                    packs["bound_by"]["images"].get<int>() + packs["bound_by"]["tiles"].get<int>())));
  int bound = 0;
  for (const auto& [limit, count] : packs["bound_by"].items()) bound += count.get<int>();
  EXPECT_EQ(bound, packs["packs"]);
}

TEST_F(InspectTest, ReportsSharesAndEpochsOfSources) {
  const std::string sources = "[{path: train.json, weight: 3, task: a}, {path: train.json, weight: 1, task: b}]";
  const auto inspection = inspect_json({"data.train=" + sources, "training.max_steps=11"}, 0);
  ASSERT_THAT(inspection["sources"], SizeIs(2));
  EXPECT_EQ(inspection["sources"][0]["samples"], kRecords);
  EXPECT_EQ(inspection["sources"][0]["weight"], 3);
  ASSERT_THAT(inspection["mixture"], SizeIs(2));
  EXPECT_DOUBLE_EQ(inspection["mixture"][0]["share"], 0.75);
  EXPECT_DOUBLE_EQ(inspection["mixture"][0]["epochs"], 3) << "33 of 44 samples";
  EXPECT_DOUBLE_EQ(inspection["mixture"][1]["epochs"], 1);
  EXPECT_EQ(inspection["tasks"]["a"]["samples"], kRecords);
}

TEST_F(InspectTest, PredictsMemoryForANamedGpu) {
  const auto inspection = inspect_json({"--gpu", "rtx4090"}, 0);
  EXPECT_EQ(inspection["predicted_for"]["fits"], true);
  int64_t before = INT64_MAX;
  for (const auto& sample : inspection["largest"]) {
    EXPECT_GT(sample["predicted_bytes"], 0);
    EXPECT_LE(sample["predicted_bytes"], before);
    before = sample["predicted_bytes"];
  }
  EXPECT_TRUE(inspect_json({}, 0)["predicted_for"].is_null());
}

TEST_F(InspectTest, NamesErrors) {
  const auto expect = [&](const std::vector<std::string>& arguments, int exit_code, const std::string& text) {
    const Result result = inspect(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(text));
    EXPECT_THAT(result.out, IsEmpty());
  };
  expect({"--record", "nobody"}, 2,
         "--record nobody: train.json has no record of that id; give an id, or a number from 1 to 11");
  expect({"data.train=nowhere.json"}, 4, "nowhere.json");
  expect({"data.train="}, 2, "data.train: empty");
  expect({"model.path=llava-1.5-7b"}, 2, "--tokenizer FILE");
  expect({"--gpu", "rtx4090", "--gpu-gb", "24"}, 2, "give one of them");
}

TEST_F(InspectTest, CountsADatasetWithoutUsableSamples) {
  write_records(nlohmann::json::array({question("gone", "gone.png")}));
  const auto inspection = inspect_json({"data.on_bad_sample=skip", "data.eval="}, 4);
  EXPECT_EQ(inspection["usable"], 0);
  EXPECT_EQ(inspection["no_order"], "none of the samples can be used");
  EXPECT_EQ(inspect({"data.on_bad_sample=skip", "data.eval="}).exit_code, 4);
}

}  // namespace

}  // namespace vlmtrain::e2e
