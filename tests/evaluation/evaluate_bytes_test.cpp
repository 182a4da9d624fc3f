// A data set has the same scores whether its media are files or in memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/parquet_test.h"
#include "io/tar_writer.h"
#include "models/mask_samples.h"
#include "parity/case.h"
#include "vlmtrain/evaluation/evaluate.h"
#include "vlmtrain/evaluation/evaluated_answer.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::evaluation {
namespace {

/// Records with media in memory, which are omitted from records without bytes.
class RecordsWithBytes final : public io::Records {
 public:
  explicit RecordsWithBytes(const std::vector<io::Record>& file_records) {
    for (const io::Record& record : file_records) {
      records_.push_back(record);
      texts_.push_back(record);
      for_each_medium(records_.back(), read);
      for_each_medium(texts_.back(), [](io::MediaRef& medium) {
        read(medium);
        for (io::MediaRef* part : list_parts(medium)) part->bytes = io::get_omitted_bytes_marker();
      });
    }
  }

  int64_t size() const override { return std::ssize(records_); }
  io::Record at(int64_t index) const override { return records_.at(static_cast<size_t>(index)); }
  io::Record at_without_media_bytes(int64_t index) const override { return texts_.at(static_cast<size_t>(index)); }

 private:
  template <class Callback>
  static void for_each_medium(io::Record& record, const Callback& callback) {
    for (io::MediaRef& medium : record.images) callback(medium);
    for (io::MediaRef& medium : record.videos) callback(medium);
    for (io::MaskSource& mask : record.masks) {
      if (!mask.rle) callback(mask.file);
    }
  }

  static std::vector<io::MediaRef*> list_parts(io::MediaRef& medium) {
    if (medium.frames.empty()) return {&medium};
    std::vector<io::MediaRef*> frames;
    for (io::MediaRef& frame : medium.frames) frames.push_back(&frame);
    return frames;
  }

  static void read(io::MediaRef& medium) {
    for (io::MediaRef* part : list_parts(medium)) {
      part->bytes = std::make_shared<const std::string>(io::read_file(part->path));
      part->path = "nowhere/" + std::filesystem::path(part->path).filename().string();
    }
  }

  std::vector<io::Record> records_, texts_;
};

/// Converts folders of frames to lists of frames, the form that data sets in memory have.
std::vector<io::Record> list_frames(std::vector<io::Record> records) {
  for (io::Record& record : records) {
    for (io::MediaRef& video : record.videos) {
      if (!std::filesystem::is_directory(video.path)) continue;
      std::vector<std::filesystem::path> files;
      for (const auto& entry : std::filesystem::directory_iterator(video.path)) files.push_back(entry.path());
      std::ranges::sort(files);
      for (const auto& file : files) video.frames.emplace_back(file);
    }
  }
  return records;
}

/// The scores and answers to compare. Notices are excluded, since they name files.
nlohmann::json compute_scores(const models::VisionLanguageModel& model, const models::Processor& processor,
                              const io::Records& records) {
  auto answers = nlohmann::json::array();
  const EvaluationResult evaluation =
      evaluate(model, processor, records, {.batch_size = 2, .max_new_tokens = 4}, [&](const EvaluatedAnswer& answer) {
        answers.push_back({answer.prediction, answer.masks.size()});
      });
  auto json = nlohmann::json::parse(evaluation.to_json());
  json.erase("seconds");
  json.erase("notices");
  json["answers"] = std::move(answers);
  return json;
}

TEST(EvaluateInMemoryTest, ImagesAndVideosMatchFiles) {
  for (const char* name : {"mixed_batch", "qwen2_5_vl_video", "internvl_rms_norm_video"}) {
    const parity::Case source(name);
    const auto model = source.load_model();
    const auto processor = source.load_processor();
    const auto records = list_frames(source.records());
    const auto file_scores = compute_scores(*model, *processor, io::InMemoryRecords(records));
    EXPECT_FALSE(file_scores["answers"].empty()) << name;
    EXPECT_EQ(compute_scores(*model, *processor, RecordsWithBytes(records)), file_scores) << name;
  }
}

TEST(EvaluateInMemoryTest, MasksMatchFiles) {
  const models::MaskSamples samples;
  const auto model = models::load_model(samples.checkpoint(), at::kCPU, at::kFloat);
  const auto processor = samples.processor();
  const auto file_scores = compute_scores(*model, *processor, io::InMemoryRecords(samples.records()));
  EXPECT_GT(file_scores["masks"]["masks"], 0);
  EXPECT_EQ(compute_scores(*model, *processor, RecordsWithBytes(samples.records())), file_scores);
}

class EvaluateShardsTest : public io::ParquetTest {
 protected:
  std::string make_tar(const parity::Case& source) const {
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

TEST_F(EvaluateShardsTest, ParquetAndTarMatchFiles) {
  const parity::Case source("mixed_batch");
  const auto model = source.load_model();
  const auto processor = source.load_processor();
  const auto file_scores = compute_scores(*model, *processor, io::InMemoryRecords(source.records()));
  const auto tar = io::open_records(put("a.tar", make_tar(source)), {});
  EXPECT_EQ(compute_scores(*model, *processor, *tar), file_scores);
  const io::SubsetRecords rows(io::open_records(io::golden_path("mixed_batch.parquet"), {}), {0, 1, 2, 3});
  EXPECT_EQ(compute_scores(*model, *processor, rows), file_scores);
}

}  // namespace
}  // namespace vlmtrain::evaluation
