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
  const Shrunk shrunk{.tokens = 900,
                      .pixels = 90,
                      .tokens_left = 800,
                      .pixels_left = 80,
                      .image_max_pixels = 70,
                      .frame_max_pixels = 60};
  const CachedShapes shapes{CachedShape{.fingerprint = 7,
                                        .file_state = 11,
                                        .files = {"p.png", "q.png"},
                                        .shape = tiles,
                                        .making_bytes = 9,
                                        .id = "a",
                                        .task = "vqa"},
                            std::nullopt,
                            CachedShape{.fingerprint = 8, .shape = volume, .making_bytes = 5, .shrunk = shrunk}};
  write_outline_cache(file, "key", /*stamp=*/17, shapes);

  EXPECT_EQ(read_outline_cache(file, "other").shapes.size(), 0);
  EXPECT_EQ(read_outline_cache(file, "key").stamp, 17U);
  const CachedShapes read = read_outline_cache(file, "key").shapes;
  ASSERT_EQ(read.size(), 3);
  EXPECT_EQ(read[0]->fingerprint, 7U);
  EXPECT_EQ(read[0]->file_state, 11U);
  EXPECT_EQ(read[0]->files, (std::vector<std::string>{"p.png", "q.png"}));
  EXPECT_EQ(read[0]->shape, tiles);
  EXPECT_EQ(read[0]->id, "a");
  EXPECT_EQ(read[0]->task, "vqa");
  EXPECT_FALSE(read[1]);
  EXPECT_EQ(read[2]->shape, volume);
  EXPECT_EQ(read[2]->making_bytes, 5);
  EXPECT_FALSE(read[0]->shrunk);
  EXPECT_EQ(read[2]->shrunk, shrunk);
  // Pictures are written as they were before there were volumes.
  EXPECT_NE(io::read_file(file).find("\n[7,11,20,3,8,1,2,40,50,0,0,9,[],\"a\",\"vqa\",[\"p.png\",\"q.png\"],null]\n"),
            std::string::npos);
}

}  // namespace
}  // namespace vlmtrain::data
