#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "io/temporary_folder.h"
#include "parity/case.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {
namespace {

using testing::HasSubstr;

/// Invalid images and videos: the error names the record, and the process continues.
class BadMedia : public io::TemporaryFolderTest {
 protected:
  BadMedia() {
    processor_ = load_processor(origin_.checkpoint(), origin_.processor_settings());
    for (const auto& record : origin_.records()) {
      if (record.videos.size() == 1 && record.images.empty()) video_record_ = record;
    }
    video_record_.id = "with-video";
    image_record_.id = "with-image";
    image_record_.turns = {{io::Role::kUser, "<image>What?"}, {io::Role::kAssistant, "This."}};
  }

  /// Returns the reason under which the record is counted; headers give the same if
  /// `is_known_from_size`.
  std::string expect_reason(const io::Record& record, std::string_view expected_message,
                            bool is_known_from_size = true) const {
    const auto get_reason = [&](bool outline) -> std::string {
      try {
        outline ? processor_->process_headers(record, 0) : processor_->process(record, 0);
      } catch (const data::SampleError& error) {
        EXPECT_THAT(error.what(), HasSubstr(record.id));
        EXPECT_THAT(error.what(), HasSubstr(expected_message));
        return error.reason();
      }
      return "accepted";
    };
    EXPECT_EQ(get_reason(true), is_known_from_size ? get_reason(false) : "accepted");
    return get_reason(false);
  }

  std::string get_image_reason(const char* name, std::string_view expected_message, bool is_known_from_size = true) {
    image_record_.images = {folder() / name};
    return expect_reason(image_record_, expected_message, is_known_from_size);
  }

  std::string get_video_reason(const char* name, std::string_view expected_message, bool is_known_from_size = true) {
    video_record_.videos = {folder() / name};
    return expect_reason(video_record_, expected_message, is_known_from_size);
  }

  const parity::Case origin_{"qwen2_5_vl_video"};
  std::unique_ptr<Processor> processor_;
  io::Record video_record_, image_record_;
};

TEST_F(BadMedia, ImageOf60000By60000PixelsIn1Kb) {
  using namespace std::string_literals;
  const std::string header =
      "\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\xea\x60\0\0\xea\x60\x08\x02\0\0\0\x0f\xb0\xe2\x15"s + std::string(900, '\0');
  io::write_file(folder() / "bomb.png", header);
  EXPECT_EQ(get_image_reason("bomb.png", "60000 x 60000"), "unreadable image");
}

TEST_F(BadMedia, PathsThatAreNoFile) {
  ASSERT_EQ(mkfifo((folder() / "pipe").c_str(), 0600), 0);  // opening it would block forever
  EXPECT_EQ(get_image_reason("pipe", "named pipe"), "unreadable image");
  EXPECT_EQ(get_video_reason("pipe", "named pipe"), "unusable video");
  EXPECT_EQ(get_image_reason("nowhere.png", "nowhere.png"), "unreadable image");
  EXPECT_EQ(get_video_reason("nowhere.mp4", "nowhere.mp4"), "unusable video");
}

TEST_F(BadMedia, TruncatedFiles) {
  const std::filesystem::path data = VLMTRAIN_SOURCE_DIR "/tests/image/data";
  const auto write_half = [&](const char* name) {
    const std::string content = io::read_file(data / name);
    io::write_file(folder() / name, content.substr(0, content.size() / 2));
  };
  write_half("rgb.jpg");
  write_half("bt709.mp4");
  EXPECT_EQ(get_image_reason("rgb.jpg", "rgb.jpg", /*is_known_from_size=*/false), "unreadable image");
  EXPECT_EQ(get_video_reason("bt709.mp4", "bt709.mp4"), "unusable video");
}

}  // namespace
}  // namespace vlmtrain::models
