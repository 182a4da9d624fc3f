// A data set has the same scores whatever holds its media: files, or the data set itself.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/parquet_test.h"
#include "io/tar_writer.h"
#include "models/mask_samples.h"
#include "parity/case.h"
#include "vlmtrain/evaluation/evaluate.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/medium_bytes.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::evaluation {
namespace {

/// Records whose media are in memory, and are left out where only texts are asked for.
class RecordsInMemory final : public io::Records {
 public:
  explicit RecordsInMemory(const std::vector<io::Record>& of_files) {
    for (const io::Record& record : of_files) {
      records_.push_back(record);
      texts_.push_back(record);
      for_each_medium(records_.back(), read);
      for_each_medium(texts_.back(), [](io::Medium& medium) {
        read(medium);
        for (io::Medium* one : parts_of(medium)) one->bytes = io::dropped_bytes();
      });
    }
  }

  int64_t size() const override { return std::ssize(records_); }
  io::Record at(int64_t index) const override { return records_.at(static_cast<size_t>(index)); }
  io::Record text_at(int64_t index) const override { return texts_.at(static_cast<size_t>(index)); }

 private:
  template <class Use>
  static void for_each_medium(io::Record& record, const Use& use) {
    for (io::Medium& medium : record.images) use(medium);
    for (io::Medium& medium : record.videos) use(medium);
    for (io::MaskSource& mask : record.masks) {
      if (!mask.rle) use(mask.file);
    }
  }

  static std::vector<io::Medium*> parts_of(io::Medium& medium) {
    if (medium.frames.empty()) return {&medium};
    std::vector<io::Medium*> frames;
    for (io::Medium& frame : medium.frames) frames.push_back(&frame);
    return frames;
  }

  static void read(io::Medium& medium) {
    for (io::Medium* one : parts_of(medium)) {
      one->bytes = std::make_shared<const std::string>(io::read_file(one->path));
      one->path = "nowhere/" + std::filesystem::path(one->path).filename().string();
    }
  }

  std::vector<io::Record> records_, texts_;
};

/// Folders of frames as lists of them, which is the form in which a data set carries frames.
std::vector<io::Record> with_listed_frames(std::vector<io::Record> records) {
  for (io::Record& record : records) {
    for (io::Medium& video : record.videos) {
      if (!std::filesystem::is_directory(video.path)) continue;
      std::vector<std::filesystem::path> files;
      for (const auto& entry : std::filesystem::directory_iterator(video.path)) files.push_back(entry.path());
      std::ranges::sort(files);
      for (const auto& file : files) video.frames.emplace_back(file);
    }
  }
  return records;
}

/// What is compared: the scores, and each answer. Notices name files.
nlohmann::json scores(const models::VisionLanguageModel& model, const models::Processor& processor,
                      const io::Records& records) {
  auto answers = nlohmann::json::array();
  const Evaluation evaluation =
      evaluate(model, processor, records, {.batch_size = 2, .max_new_tokens = 4}, [&](const Answer& answer) {
        answers.push_back({answer.given, answer.masks.size()});
      });
  auto json = nlohmann::json::parse(evaluation.to_json());
  json.erase("seconds");
  json.erase("notices");
  json["answers"] = std::move(answers);
  return json;
}

TEST(EvaluateBytes, ImagesAndVideosInMemoryHaveTheScoresOfFiles) {
  for (const char* name : {"mixed_batch", "qwen2_5_vl_video", "internvl_rms_norm_video"}) {
    const parity::Case source(name);
    const auto model = source.load_model();
    const auto processor = source.load_processor();
    const auto records = with_listed_frames(source.records());
    const auto of_files = scores(*model, *processor, io::RecordList(records));
    EXPECT_FALSE(of_files["answers"].empty()) << name;
    EXPECT_EQ(scores(*model, *processor, RecordsInMemory(records)), of_files) << name;
  }
}

TEST(EvaluateBytes, MasksInMemoryHaveTheScoresOfFiles) {
  const models::MaskSamples samples;
  const auto model = models::load_model(samples.checkpoint(), at::kCPU, at::kFloat);
  const auto processor = samples.processor();
  const auto of_files = scores(*model, *processor, io::RecordList(samples.records()));
  EXPECT_GT(of_files["masks"]["masks"], 0);
  EXPECT_EQ(scores(*model, *processor, RecordsInMemory(samples.records())), of_files);
}

class EvaluateShards : public io::ParquetTest {
 protected:
  std::string tar_of(const parity::Case& source) const {
    const auto records = nlohmann::json::parse(io::read_file(source.images().parent_path() / "conversations.json"));
    io::TarWriter tar;
    for (const auto& record : records) {
      const std::string key = record["id"];
      auto images = record.value("image", nlohmann::json::array());
      if (!images.is_array()) images = nlohmann::json::array({images});
      for (size_t i = 0; i < images.size(); ++i) {
        const auto file = source.images() / images[i].get<std::string>();
        tar.add(fmt::format("{}.{}{}", key, i, file.extension().string()), io::read_file(file));
      }
      auto fields = record;
      fields.erase("image");
      tar.add(key + ".json", fields.dump());
    }
    return tar.closed();
  }
};

TEST_F(EvaluateShards, ParquetAndTarHaveTheScoresOfFiles) {
  const parity::Case source("mixed_batch");
  const auto model = source.load_model();
  const auto processor = source.load_processor();
  const auto of_files = scores(*model, *processor, io::RecordList(source.records()));
  const auto tar = io::open_records(put("a.tar", tar_of(source)), {});
  EXPECT_EQ(scores(*model, *processor, *tar), of_files);
  const io::ChosenRecords rows(io::open_records(io::golden("mixed_batch.parquet"), {}), {0, 1, 2, 3});
  EXPECT_EQ(scores(*model, *processor, rows), of_files);
}

}  // namespace
}  // namespace vlmtrain::evaluation
