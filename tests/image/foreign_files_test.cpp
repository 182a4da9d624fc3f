// Files that lie where media are looked for and are none.

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "image/volume/volume_stream.h"
#include "io/temporary_folder.h"
#include "vlmtrain/base/file_names.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/image/mask.h"
#include "vlmtrain/image/video.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::image {
namespace {

using io::get_error_message;
using testing::AllOf;
using testing::HasSubstr;

using ForeignFiles = io::TemporaryFolderTest;

constexpr std::string_view kPointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n";

TEST_F(ForeignFiles, HiddenFilesAreNotFrames) {
  const std::string frame = encode_png(at::zeros({3, 4, 4}, at::kByte));
  for (const char* name : {"a.png", "b.PNG", "c.png"}) put(name, frame);
  for (const char* name : {"._a.png", ".b.png", ".DS_Store", "Thumbs.db", "desktop.ini"}) put(name, "no image");
  EXPECT_EQ(VideoFile(folder()).info().num_frames, 3);
}

TEST_F(ForeignFiles, ReadsAllJpegExtensions) {
  const std::string frame = encode_png(at::zeros({3, 4, 4}, at::kByte));  // the content decides what they are
  for (const char* name : {"a.jfif", "b.JPE", "c.pjpeg", "d.pjp"}) put(name, frame);
  EXPECT_EQ(VideoFile(folder()).info().num_frames, 4);
}

TEST_F(ForeignFiles, ErrorsNameGitLfsPointers) {
  const auto expect_pointer_error = [&](const std::string& name, const auto& read_media) {
    for (const bool in_memory : {false, true}) {
      io::MediaRef medium(put(name, kPointer));
      if (in_memory) medium.bytes = std::make_shared<const std::string>(kPointer);
      EXPECT_THAT(get_error_message([&] { read_media(medium); }),
                  AllOf(HasSubstr(name), HasSubstr("a Git LFS pointer"), HasSubstr("git lfs pull")));
    }
  };
  expect_pointer_error("a.mp4", [](const io::MediaRef& medium) { VideoFile video(medium); });
  expect_pointer_error("a.nii.gz", [](const io::MediaRef& medium) { open_volume_stream(medium); });
  expect_pointer_error("b.nii", [](const io::MediaRef& medium) { open_volume_stream(medium); });
  expect_pointer_error("a.png", [](const io::MediaRef& medium) { decode_image(medium); });
  expect_pointer_error("mask.png", [](const io::MediaRef& medium) { decode_mask(medium, {}); });
}

TEST_F(ForeignFiles, DroppedBytesAreNotContent) {
  io::MediaRef medium("a.png");
  medium.bytes = io::get_omitted_bytes_marker();
  const auto expect_internal_error = [](const auto& read_media) { EXPECT_THROW(read_media(), InternalError); };
  expect_internal_error([&] { decode_image(medium); });
  expect_internal_error([&] { read_image_size(medium); });
  expect_internal_error([&] { decode_mask(medium, {}); });
  expect_internal_error([&] { read_mask_size(medium, {}); });
  expect_internal_error([&] { VideoFile video(medium); });
  expect_internal_error([&] { open_volume_stream(medium); });
}

TEST(NaturalOrder, ComparesDigitsAsNumbers) {
  EXPECT_TRUE(precedes_in_natural_order("frame2.png", "frame10.png"));
  EXPECT_FALSE(precedes_in_natural_order("frame10.png", "frame2.png"));
  EXPECT_TRUE(precedes_in_natural_order("a9b1", "a9b02"));
  EXPECT_TRUE(precedes_in_natural_order("a", "a1"));
  EXPECT_TRUE(precedes_in_natural_order("1", "a"));
  EXPECT_TRUE(precedes_in_natural_order("f002", "f2") != precedes_in_natural_order("f2", "f002"));
  EXPECT_FALSE(precedes_in_natural_order("f2", "f2"));
  EXPECT_TRUE(precedes_in_natural_order("99999999999999999999999998", "99999999999999999999999999"));
}

}  // namespace
}  // namespace vlmtrain::image
