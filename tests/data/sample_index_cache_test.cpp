#include "data/index/sample_index_cache.h"

#include <c10/core/ScalarType.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "vlmtrain/io/file.h"

namespace vlmtrain::data {
namespace {

using SampleIndexCacheTest = io::TemporaryFolderTest;

TEST_F(SampleIndexCacheTest, StoresShapesOfAllMedia) {
  const auto file = folder() / "data_check.jsonl";
  const SampleShape tiles{.tokens = 20,
                          .label_tokens = 3,
                          .image_tokens = 8,
                          .num_images = 1,
                          .pixel_rows = 2,
                          .row = {.height = 40, .width = 50}};
  SampleShape volume = tiles;
  volume.row = {.dtype = at::kFloat, .channels = 1, .depth = 6, .height = 40, .width = 50};
  volume.num_images = 0;
  volume.num_volumes = 1;
  SampleShape mask_sample = tiles;
  mask_sample.masks = 2;
  mask_sample.num_images_with_masks = 1;
  mask_sample.mask_image_size = 64;
  SampleShape weighted = tiles;
  weighted.has_label_weights = true;
  weighted.has_position_axes = true;
  const ShrinkInfo shrunk{.tokens = 900,
                          .pixels = 90,
                          .tokens_after = 800,
                          .pixels_after = 80,
                          .image_max_pixels = 70,
                          .frame_max_pixels = 60};
  const std::vector<std::optional<CachedSample>> shapes{
      CachedSample{.fingerprint = 7,
                   .file_state_hash = 11,
                   .files = {"p.png", "q.png"},
                   .shape = tiles,
                   .decode_bytes = 9,
                   .id = "a",
                   .task = "vqa"},
      std::nullopt, CachedSample{.fingerprint = 8, .shape = volume, .decode_bytes = 5, .shrink_info = shrunk},
      CachedSample{.fingerprint = 9, .shape = mask_sample, .decode_bytes = 6},
      CachedSample{.fingerprint = 10, .shape = weighted, .decode_bytes = 9}};
  {
    SampleIndexCacheWriter writer(file, "key", /*version_hash=*/17, /*samples=*/5);
    for (const auto& shape : shapes) writer.add(to_cache_line(shape));
    EXPECT_FALSE(std::filesystem::exists(file)) << "not complete yet";
    writer.commit();
  }
  EXPECT_EQ(SampleIndexCacheReader(file, "other").num_samples(), 0);
  SampleIndexCacheReader reader(file, "key");
  EXPECT_EQ(reader.version_hash(), 17U);
  ASSERT_EQ(reader.num_samples(), 5);
  std::vector<std::optional<CachedSample>> samples;
  for (int i = 0; i < 5; ++i) samples.push_back(parse_cache_line(reader.next()));
  EXPECT_EQ(reader.next(), "") << "the hash is not a line";
  ASSERT_TRUE(samples[0] && samples[2]);
  EXPECT_EQ(samples[0]->fingerprint, 7U);
  EXPECT_EQ(samples[0]->file_state_hash, 11U);
  EXPECT_EQ(samples[0]->files, (std::vector<std::string>{"p.png", "q.png"}));
  EXPECT_EQ(samples[0]->shape, tiles);
  EXPECT_EQ(samples[0]->id, "a");
  EXPECT_EQ(samples[0]->task, "vqa");
  EXPECT_FALSE(samples[1]);
  EXPECT_EQ(samples[2]->shape, volume);
  EXPECT_EQ(samples[3]->shape, mask_sample);
  ASSERT_TRUE(samples[4]);
  EXPECT_EQ(samples[4]->shape, weighted);
  EXPECT_EQ(samples[2]->decode_bytes, 5);
  EXPECT_FALSE(samples[0]->shrink_info);
  EXPECT_EQ(samples[2]->shrink_info, shrunk);
  // Images without volumes, masks and weights need no further fields.
  EXPECT_NE(io::read_file(file).find("\n[7,11,20,3,8,1,2,40,50,0,0,9,0,[],\"a\",\"vqa\",[\"p.png\",\"q.png\"],null]\n"),
            std::string::npos);
}

/// Everything that the chat template and the loss read decides on the labels of a sample.
TEST(RecordFingerprint, ChangesWithWeightsCallsAndTools) {
  io::Record record;
  record.turns = {{.role = io::Role::kAssistant, .text = "A"}};
  std::vector<io::Record> records(6, record);
  records[1].turns[0].loss_weight = 0;
  records[2].turns[0].loss_weight = 0.5;
  records[3].turns[0].fields = {{"tool_calls", "[]"}};
  records[4].turns[0].has_content = false;
  records[5].template_variables = {{"tools", "[]"}};
  std::set<uint64_t> fingerprints;
  for (const io::Record& each : records) fingerprints.insert(compute_record_fingerprint(each));
  EXPECT_EQ(fingerprints.size(), records.size());
}

TEST_F(SampleIndexCacheTest, CopiesLinesThatWereRead) {
  const auto file = folder() / "old", copy = folder() / "new";
  SampleIndexCacheWriter old_writer(file, "key", 17, 1000);
  // More than one block of the hash.
  for (int i = 0; i < 1000; ++i) old_writer.add(fmt::format("[{}{}]", i, std::string(3000, ' ')));
  old_writer.commit();
  SampleIndexCacheReader reader(file, "key");
  ASSERT_EQ(reader.num_samples(), 1000);
  for (int i = 0; i < 700; ++i) reader.next();
  SampleIndexCacheWriter writer(copy, "key", 18, 1000);
  reader.copy_lines(writer, 100);
  EXPECT_TRUE(reader.next().starts_with("[700 ")) << "continues where it stopped";
  for (int i = 600; i < 1000; ++i) writer.add(std::to_string(i));
  writer.commit();
  SampleIndexCacheReader copied_reader(copy, "key");
  ASSERT_EQ(copied_reader.num_samples(), 1000);
  EXPECT_EQ(copied_reader.version_hash(), 18U);
  std::vector<std::string> lines;
  for (int i = 0; i < 1000; ++i) lines.push_back(copied_reader.next());
  EXPECT_TRUE(lines[599].starts_with("[599 "));
  EXPECT_EQ(lines[600], "600");
  EXPECT_EQ(lines[999], "999");
}

TEST_F(SampleIndexCacheTest, UnwritableFileIsNoError) {
  SampleIndexCacheWriter writer(folder() / "missing" / "cache", "key", 1, 2);
  writer.add("null");
  writer.add("null");
  writer.commit();
  EXPECT_FALSE(std::filesystem::exists(folder() / "missing"));
}

}  // namespace
}  // namespace vlmtrain::data
