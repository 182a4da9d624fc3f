#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "io/temporary_folder.h"
#include "parity/case.h"
#include "vlmtrain/data/sample.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file.h"

namespace vlmtrain::models {
namespace {

using testing::HasSubstr;

/// Pictures and videos that no sample can be made of: the record is refused by its name, and the process lives.
class BadMedia : public io::TemporaryFolderTest {
 protected:
  BadMedia() {
    processor_ = load_processor(origin_.checkpoint(), origin_.processor_settings());
    for (const auto& record : origin_.records()) {
      if (record.videos.size() == 1 && record.images.empty()) video_ = record;
    }
    video_.id = "with-video";
    picture_.id = "with-picture";
    picture_.turns = {{io::Role::kUser, "<image>What?"}, {io::Role::kAssistant, "This."}};
  }

  /// The ledger's reason, the same of an outline where it is `known_from_size`.
  std::string reason(const io::Record& record, std::string_view said, bool known_from_size = true) const {
    const auto reason_of = [&](bool outline) -> std::string {
      try {
        outline ? processor_->outline(record, 0) : processor_->process(record, 0);
      } catch (const data::SampleError& error) {
        EXPECT_THAT(error.what(), HasSubstr(record.id));
        EXPECT_THAT(error.what(), HasSubstr(said));
        return error.reason();
      }
      return "accepted";
    };
    EXPECT_EQ(reason_of(true), known_from_size ? reason_of(false) : "accepted");
    return reason_of(false);
  }

  std::string with_picture(const char* name, std::string_view said, bool known_from_size = true) {
    picture_.images = {folder() / name};
    return reason(picture_, said, known_from_size);
  }

  std::string with_video(const char* name, std::string_view said, bool known_from_size = true) {
    video_.videos = {folder() / name};
    return reason(video_, said, known_from_size);
  }

  const parity::Case origin_{"qwen2_5_vl_video"};
  std::unique_ptr<Processor> processor_;
  io::Record video_, picture_;
};

TEST_F(BadMedia, APictureOf60000By60000PixelsIn1Kb) {
  using namespace std::string_literals;
  const std::string header =
      "\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\xea\x60\0\0\xea\x60\x08\x02\0\0\0\x0f\xb0\xe2\x15"s + std::string(900, '\0');
  io::write_file(folder() / "bomb.png", header);
  EXPECT_EQ(with_picture("bomb.png", "60000 x 60000"), "unreadable image");
}

TEST_F(BadMedia, WhatIsNoFile) {
  ASSERT_EQ(mkfifo((folder() / "pipe").c_str(), 0600), 0);  // who opens it waits for ever
  EXPECT_EQ(with_picture("pipe", "named pipe"), "unreadable image");
  EXPECT_EQ(with_video("pipe", "named pipe"), "unusable video");
  EXPECT_EQ(with_picture("nowhere.png", "nowhere.png"), "unreadable image");
  EXPECT_EQ(with_video("nowhere.mp4", "nowhere.mp4"), "unusable video");
}

TEST_F(BadMedia, FilesThatAreCutOff) {
  const std::filesystem::path data = VLMTRAIN_SOURCE_DIR "/tests/image/data";
  const auto half_of = [&](const char* name) {
    const std::string content = io::read_file(data / name);
    io::write_file(folder() / name, content.substr(0, content.size() / 2));
  };
  half_of("rgb.jpg");
  half_of("bt709.mp4");
  EXPECT_EQ(with_picture("rgb.jpg", "rgb.jpg", /*known_from_size=*/false), "unreadable image");
  EXPECT_EQ(with_video("bt709.mp4", "bt709.mp4"), "unusable video");
}

}  // namespace
}  // namespace vlmtrain::models
