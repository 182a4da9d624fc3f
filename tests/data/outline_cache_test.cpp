#include "data/outline_cache.h"

#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "vlmtrain/io/file.h"

namespace vlmtrain::data {
namespace {

using OutlineCache = io::TemporaryFolderTest;

TEST_F(OutlineCache, KeepsShapesOfAllMedia) {
  const auto file = folder() / "data_check.jsonl";
  const SampleShape tiles{.tokens = 20,
                          .label_tokens = 3,
                          .image_tokens = 8,
                          .images = 1,
                          .pixel_rows = 2,
                          .row = {.height = 40, .width = 50}};
  SampleShape volume = tiles;
  volume.row = {.dtype = at::kFloat, .channels = 1, .depth = 6, .height = 40, .width = 50};
  volume.volumes = 1;
  SampleShape drawn = tiles;
  drawn.masks = 2;
  drawn.mask_pictures = 1;
  drawn.mask_side = 64;
  const Shrunk shrunk{.tokens = 900,
                      .pixels = 90,
                      .tokens_left = 800,
                      .pixels_left = 80,
                      .image_max_pixels = 70,
                      .frame_max_pixels = 60};
  const std::vector<std::optional<CachedShape>> shapes{
      CachedShape{.fingerprint = 7,
                  .file_state = 11,
                  .files = {"p.png", "q.png"},
                  .shape = tiles,
                  .making_bytes = 9,
                  .id = "a",
                  .task = "vqa"},
      std::nullopt, CachedShape{.fingerprint = 8, .shape = volume, .making_bytes = 5, .shrunk = shrunk},
      CachedShape{.fingerprint = 9, .shape = drawn, .making_bytes = 6}};
  {
    OutlineCacheWriter writer(file, "key", /*stamp=*/17, /*samples=*/4);
    for (const auto& shape : shapes) writer.add(line_of(shape));
    EXPECT_FALSE(std::filesystem::exists(file)) << "not yet whole";
    writer.commit();
  }
  EXPECT_EQ(OutlineCacheReader(file, "other").samples(), 0);
  OutlineCacheReader reader(file, "key");
  EXPECT_EQ(reader.stamp(), 17U);
  ASSERT_EQ(reader.samples(), 4);
  std::vector<std::optional<CachedShape>> read;
  for (int i = 0; i < 4; ++i) read.push_back(shape_in(reader.next()));
  EXPECT_EQ(reader.next(), "") << "the hash is no line";
  ASSERT_TRUE(read[0] && read[2]);
  EXPECT_EQ(read[0]->fingerprint, 7U);
  EXPECT_EQ(read[0]->file_state, 11U);
  EXPECT_EQ(read[0]->files, (std::vector<std::string>{"p.png", "q.png"}));
  EXPECT_EQ(read[0]->shape, tiles);
  EXPECT_EQ(read[0]->id, "a");
  EXPECT_EQ(read[0]->task, "vqa");
  EXPECT_FALSE(read[1]);
  EXPECT_EQ(read[2]->shape, volume);
  EXPECT_EQ(read[3]->shape, drawn);
  EXPECT_EQ(read[2]->making_bytes, 5);
  EXPECT_FALSE(read[0]->shrunk);
  EXPECT_EQ(read[2]->shrunk, shrunk);
  // Pictures are written as they were before there were volumes.
  EXPECT_NE(io::read_file(file).find("\n[7,11,20,3,8,1,2,40,50,0,0,9,[],\"a\",\"vqa\",[\"p.png\",\"q.png\"],null]\n"),
            std::string::npos);
}

TEST_F(OutlineCache, LinesThatWereReadCanBeWrittenAgain) {
  const auto file = folder() / "old", copy = folder() / "new";
  OutlineCacheWriter old(file, "key", 17, 1000);
  // More than one block of the hash.
  for (int i = 0; i < 1000; ++i) old.add(fmt::format("[{}{}]", i, std::string(3000, ' ')));
  old.commit();
  OutlineCacheReader reader(file, "key");
  ASSERT_EQ(reader.samples(), 1000);
  for (int i = 0; i < 700; ++i) reader.next();
  OutlineCacheWriter writer(copy, "key", 18, 1000);
  reader.repeat(writer, 100);
  EXPECT_TRUE(reader.next().starts_with("[700 ")) << "it goes on where it was";
  for (int i = 600; i < 1000; ++i) writer.add(std::to_string(i));
  writer.commit();
  OutlineCacheReader again(copy, "key");
  ASSERT_EQ(again.samples(), 1000);
  EXPECT_EQ(again.stamp(), 18U);
  std::vector<std::string> lines;
  for (int i = 0; i < 1000; ++i) lines.push_back(again.next());
  EXPECT_TRUE(lines[599].starts_with("[599 "));
  EXPECT_EQ(lines[600], "600");
  EXPECT_EQ(lines[999], "999");
}

TEST_F(OutlineCache, AFileThatCannotBeWrittenIsNoError) {
  OutlineCacheWriter writer(folder() / "missing" / "cache", "key", 1, 2);
  writer.add("null");
  writer.add("null");
  writer.commit();
  EXPECT_FALSE(std::filesystem::exists(folder() / "missing"));
}

}  // namespace
}  // namespace vlmtrain::data
