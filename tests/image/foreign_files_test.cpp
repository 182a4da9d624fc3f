// Files that lie where media are looked for and are none.

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "image/volume/volume_stream.h"
#include "io/temporary_folder.h"
#include "vlmtrain/image/decode.h"
#include "vlmtrain/image/encode.h"
#include "vlmtrain/image/mask.h"
#include "vlmtrain/image/video.h"
#include "vlmtrain/io/medium_bytes.h"

namespace vlmtrain::image {
namespace {

using io::message_of;
using testing::AllOf;
using testing::HasSubstr;

using ForeignFiles = io::TemporaryFolderTest;

constexpr std::string_view kPointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n";

TEST_F(ForeignFiles, HiddenFilesAreNoFrames) {
  const std::string frame = encode_png(at::zeros({3, 4, 4}, at::kByte));
  for (const char* name : {"a.png", "b.PNG", "c.png"}) put(name, frame);
  for (const char* name : {"._a.png", ".b.png", ".DS_Store", "Thumbs.db", "desktop.ini"}) put(name, "no image");
  EXPECT_EQ(VideoFile(folder()).info().frames, 3);
}

TEST_F(ForeignFiles, EndingsOfJpegAreRead) {
  const std::string frame = encode_png(at::zeros({3, 4, 4}, at::kByte));  // the content decides what they are
  for (const char* name : {"a.jfif", "b.JPE", "c.pjpeg", "d.pjp"}) put(name, frame);
  EXPECT_EQ(VideoFile(folder()).info().frames, 4);
}

TEST_F(ForeignFiles, GitLfsPointersAreNamed) {
  const auto read = [&](const std::string& name, const auto& reader) {
    for (const bool in_memory : {false, true}) {
      io::Medium medium(put(name, kPointer));
      if (in_memory) medium.bytes = std::make_shared<const std::string>(kPointer);
      EXPECT_THAT(message_of([&] { reader(medium); }),
                  AllOf(HasSubstr(name), HasSubstr("a Git LFS pointer"), HasSubstr("git lfs pull")));
    }
  };
  read("a.mp4", [](const io::Medium& medium) { VideoFile video(medium); });
  read("a.nii.gz", [](const io::Medium& medium) { open_volume_stream(medium); });
  read("b.nii", [](const io::Medium& medium) { open_volume_stream(medium); });
  read("a.png", [](const io::Medium& medium) { decode_image(medium); });
  read("mask.png", [](const io::Medium& medium) { decode_mask(medium, {}); });
}

TEST_F(ForeignFiles, BytesThatWereLeftOutAreNotTakenForContent) {
  io::Medium medium("a.png");
  medium.bytes = io::dropped_bytes();
  const auto fails = [](const auto& reader) { EXPECT_THROW(reader(), InternalError); };
  fails([&] { decode_image(medium); });
  fails([&] { read_image_size(medium); });
  fails([&] { decode_mask(medium, {}); });
  fails([&] { read_mask_size(medium, {}); });
  fails([&] { VideoFile video(medium); });
  fails([&] { open_volume_stream(medium); });
}

}  // namespace
}  // namespace vlmtrain::image
