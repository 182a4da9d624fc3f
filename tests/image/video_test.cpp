#include "vlmtrain/image/video.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/stack.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "image/reference_files.h"
#include "image/video_writer.h"
#include "io/temporary_folder.h"
#include "vlmtrain/image/image_file.h"

namespace vlmtrain::image {
namespace {

using io::get_error_message;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

const Clip kLossy{.codec = "mpeg2video",
                  .format = AV_PIX_FMT_YUV420P,
                  .width = 64,
                  .height = 48,
                  .frames = 30,
                  .rate = {25, 1},
                  .key_interval = 8,
                  .b_frames = 2};

std::vector<int64_t> list_preselected_frames(const VideoFile& video) {
  std::vector<int64_t> indices(video.info().num_frames);
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

/// Returns frames by index, [n, 3, height, width].
at::Tensor read(VideoFile& video, const std::vector<int64_t>& indices) {
  const auto [height, width] = video.info().size;
  at::Tensor frames = at::empty({std::ssize(indices), 3, height, width}, at::kByte);
  int64_t num_taken = 0;
  video.read_frames(indices, [&](const at::Tensor& frame) { frames[num_taken++].copy_(frame); });
  EXPECT_EQ(num_taken, std::ssize(indices));
  return frames;
}

class Video : public io::TemporaryFolderTest {
 protected:
  std::filesystem::path write_clip(const std::string& name, const Clip& clip) const {
    const bool is_yuv = clip.format == AV_PIX_FMT_YUV420P;
    VideoWriter(folder() / name, clip).write(is_yuv ? paint_yuv_frame : paint_rgb_frame);
    return folder() / name;
  }

  static std::string get_refusal(const io::MediaRef& medium) {
    return get_error_message([&] {
      VideoFile video(medium);
      read(video, list_preselected_frames(video));
    });
  }
};

TEST_F(Video, ReadsThePixelsOfEachFrame) {
  const Clip clip{.width = 35, .height = 21};
  VideoFile video(write_clip("rgb.mkv", clip));
  EXPECT_EQ(video.info().num_frames, 12);
  EXPECT_DOUBLE_EQ(video.info().fps, 10);
  EXPECT_EQ(video.info().size, (ImageSize{21, 35}));
  const std::vector<int64_t> indices{0, 5, 5, 11};
  const at::Tensor frames = read(video, indices);
  ASSERT_EQ(frames.sizes(), (std::vector<int64_t>{4, 3, 21, 35}));
  ASSERT_TRUE(frames.is_contiguous());
  const uint8_t* pixel = frames.const_data_ptr<uint8_t>();
  for (const int64_t frame_number : indices) {
    for (size_t channel = 0; channel < 3; ++channel) {
      for (int y = 0; y < 21; ++y) {
        for (int x = 0; x < 35; ++x) ASSERT_EQ(*pixel++, make_color(static_cast<int>(frame_number), y, x)[channel]);
      }
    }
  }
  EXPECT_EQ(read(video, {}).size(0), 0);
}

TEST_F(Video, RejectsInvalidIndices) {
  VideoFile video(write_clip("rgb.mkv", {}));
  EXPECT_THROW(read(video, {12}), InternalError);
  EXPECT_THROW(read(video, {-1}), InternalError);
  EXPECT_THROW(read(video, {3, 2}), InternalError);
}

TEST_F(Video, CountsFramesInEveryContainer) {
  for (const char* name : {"indexed.mp4", "a.mov", "a.mkv", "a.ts", "a.mpg", "a.avi"}) {
    VideoFile video(write_clip(name, kLossy));
    EXPECT_EQ(video.info().num_frames, 30) << name;
    EXPECT_NEAR(video.info().fps, 25, 0.01) << name;
    EXPECT_EQ(read(video, list_preselected_frames(video)).size(0), 30) << name;
  }
  for (const char* options : {"movflags=frag_keyframe", "movflags=frag_keyframe+empty_moov", "movflags=faststart"}) {
    Clip clip = kLossy;
    clip.options = options;
    EXPECT_EQ(VideoFile(write_clip("fragments.mp4", clip)).info().num_frames, 30) << options;
  }
  for (const char* name : {"old.avi", "old.mp4"}) {
    Clip clip = kLossy;
    clip.codec = "mpeg4";
    EXPECT_EQ(VideoFile(write_clip(name, clip)).info().num_frames, 30) << name;
  }
}

TEST_F(Video, ReadsTheSameFramesInAnyRequest) {
  for (const char* name : {"a.mp4", "a.mkv", "a.ts", "a.avi"}) {
    VideoFile video(write_clip(name, kLossy));
    const at::Tensor whole = read(video, list_preselected_frames(video));
    for (int64_t first = 0; first < 30; ++first) {
      const std::vector<int64_t> indices{first, std::min<int64_t>(first + 1, 29), std::min<int64_t>(first + 11, 29)};
      const at::Tensor subset = read(video, indices);
      for (int64_t i = 0; i < 3; ++i) ASSERT_TRUE(at::equal(subset[i], whole[indices[i]])) << name << indices[i];
    }
  }
}

TEST_F(Video, IsOpenedOnce) {
  // A file that was removed after it was opened is still read, since it stays open.
  for (const char* name : {"a.mp4", "a.mkv"}) {
    const auto file = write_clip(name, kLossy);
    VideoFile intact(file);
    const at::Tensor whole = read(intact, list_preselected_frames(intact));
    VideoFile video(file);
    std::filesystem::remove(file);
    EXPECT_TRUE(at::equal(read(video, list_preselected_frames(video)), whole)) << name;
  }
}

TEST_F(Video, DoesNotCountReferenceOnlyFrames) {
  // libvpx makes frames that are only referred to once it may look ahead.
  Clip clip = kLossy;
  clip.codec = "libvpx";
  clip.options = {};
  clip.frames = 60;
  if (avcodec_find_encoder_by_name("libvpx") == nullptr) GTEST_SKIP() << "FFmpeg on this machine has no VP8 encoder";
  VideoFile video(write_clip("a.webm", clip));
  ASSERT_EQ(video.info().num_frames, 60);
  const at::Tensor whole = read(video, list_preselected_frames(video));
  EXPECT_TRUE(at::equal(read(video, {20, 59}), at::stack({whole[20], whole[59]})));
}

TEST_F(Video, KeepsOneFrameInMemory) {
  VideoFile video(write_clip("a.mp4", kLossy));
  const void* memory = nullptr;
  video.read_frames(list_preselected_frames(video), [&](const at::Tensor& frame) {
    if (memory == nullptr) memory = frame.const_data_ptr();
    EXPECT_EQ(frame.const_data_ptr(), memory);
  });
}

TEST_F(Video, RejectsAVideoOfAMillionFrames) {
  const Clip tiny{.width = 8, .height = 8, .frames = 1};
  for (const char* name : {"long.mp4", "long.mkv"}) {
    Clip clip = tiny;
    if (std::string_view(name).ends_with("mp4")) clip.codec = "mpeg2video", clip.format = AV_PIX_FMT_YUV420P;
    {
      VideoWriter writer(folder() / name, clip);
      writer.write(clip.format == AV_PIX_FMT_YUV420P ? paint_yuv_frame : paint_rgb_frame);
      for (int64_t i = 1; i < 1'000'000; ++i) writer.write_packet(writer.first_key_packet(), 1000 * i);
    }
    EXPECT_THAT(get_refusal(folder() / name),
                AllOf(HasSubstr(name), HasSubstr("the limit of 500000"), HasSubstr("split it")));
  }
}

TEST_F(Video, StartsAtThePrecedingKeyFrame) {
  std::string key_packet;
  {
    VideoWriter writer(folder() / "a.mp4", kLossy);
    writer.write(paint_yuv_frame);
    key_packet = writer.first_key_packet();
  }
  VideoFile whole(folder() / "a.mp4");
  const at::Tensor intact = read(whole, {20, 29});
  std::string content = read_contents(folder() / "a.mp4");
  const size_t at = content.find(key_packet);
  ASSERT_NE(at, std::string::npos);
  content.replace(at + 40, key_packet.size() - 40, key_packet.size() - 40, '\xFF');
  VideoFile damaged(put("damaged.mp4", content));
  EXPECT_THAT(get_error_message([&] { read(damaged, {0}); }), HasSubstr("damaged.mp4: frame 0 cannot be decoded"));
  VideoFile again(folder() / "damaged.mp4");
  EXPECT_TRUE(at::equal(read(again, {20, 29}), intact));
}

TEST_F(Video, AppliesTheDisplayMatrix) {
  struct Case {
    std::array<int32_t, 4> matrix;
    bool swaps_axes;
    int y, x;  // where the stored first pixel comes to lie; -1: the last row or column
  };
  const Clip clip{.codec = "qtrle", .format = AV_PIX_FMT_RGB24, .width = 36, .height = 20, .frames = 2};
  for (const auto& [matrix, swaps_axes, y, x] :
       {Case{{1, 0, 0, 1}, false, 0, 0}, Case{{-1, 0, 0, 1}, false, 0, -1}, Case{{-1, 0, 0, -1}, false, -1, -1},
        Case{{1, 0, 0, -1}, false, -1, 0}, Case{{0, 1, 1, 0}, true, 0, 0}, Case{{0, 1, -1, 0}, true, 0, -1},
        Case{{0, -1, -1, 0}, true, -1, -1}, Case{{0, -1, 1, 0}, true, -1, 0}}) {
    Clip rotated = clip;
    std::ranges::copy(matrix, rotated.matrix);
    VideoFile video(write_clip("turned.mov", rotated));
    EXPECT_EQ(video.info().size, swaps_axes ? (ImageSize{36, 20}) : (ImageSize{20, 36}));
    const at::Tensor frame = read(video, {1})[0];
    for (int64_t channel = 0; channel < 3; ++channel) {
      EXPECT_EQ(frame[channel][y][x].item<uint8_t>(), make_color(1, 0, 0)[channel]) << y << x;
    }
  }
}

TEST_F(Video, ReadsAFolderOfFrames) {
  std::filesystem::create_directory(folder() / "frames");
  const auto copy = [&](const char* from, const char* to) {
    std::filesystem::copy_file(kImageData / from, folder() / "frames" / to,
                               std::filesystem::copy_options::overwrite_existing);
  };
  copy("rgb.png", "frame10.png");
  copy("rgb.jpg", "frame2.JPG");
  copy("rgb.webp", "frame1.webp");
  copy("SOURCES.md", "frame0.md");
  VideoFile video(folder() / "frames");
  EXPECT_EQ(video.info().num_frames, 3);
  EXPECT_EQ(video.info().fps, 0);
  const at::Tensor frames = read(video, {0, 1, 2, 2});
  EXPECT_TRUE(at::equal(frames[0], decode_image(kImageData / "rgb.webp")));
  EXPECT_TRUE(at::equal(frames[1], decode_image(kImageData / "rgb.jpg")));
  EXPECT_TRUE(at::equal(frames[2], decode_image(kImageData / "rgb.png")));
  EXPECT_TRUE(at::equal(frames[3], frames[2]));

  copy("orientation_6.jpg", "frame11.jpg");
  EXPECT_THAT(get_refusal(folder() / "frames"), AllOf(HasSubstr("frame11.jpg"), HasSubstr("make all frames")));
  std::filesystem::create_directory(folder() / "empty");
  EXPECT_THAT(get_refusal(folder() / "empty"), HasSubstr("no image files"));
}

io::MediaRef make_frame_list(const std::vector<std::string>& files) {
  io::MediaRef video;
  for (const auto& file : files) video.frames.emplace_back(file);
  return video;
}

TEST_F(Video, ReadsAListOfFramesInOrder) {
  const auto path = [](const char* name) { return (kImageData / name).string(); };
  io::MediaRef list = make_frame_list({path("rgb.webp"), path("rgb.jpg"), path("rgb.webp"), path("rgb.png")});
  list.frames[3].bytes = std::make_shared<const std::string>(read_contents(path("rgb.png")));
  VideoFile video(list);
  EXPECT_EQ(video.info().num_frames, 4);
  EXPECT_EQ(video.info().fps, 0);
  const at::Tensor read_frames = read(video, {0, 1, 2, 3});
  EXPECT_TRUE(at::equal(read_frames[0], decode_image(kImageData / "rgb.webp")));
  EXPECT_TRUE(at::equal(read_frames[1], decode_image(kImageData / "rgb.jpg")));
  EXPECT_TRUE(at::equal(read_frames[2], read_frames[0]));
  EXPECT_TRUE(at::equal(read_frames[3], decode_image(kImageData / "rgb.png")));
}

TEST_F(Video, ErrorsNameTheBadFrame) {
  const auto path = [](const char* name) { return (kImageData / name).string(); };
  EXPECT_THAT(get_refusal(make_frame_list({path("rgb.png"), "/nowhere/7.png"})),
              AllOf(HasSubstr("/nowhere/7.png"), HasSubstr("cannot open the frame")));
  EXPECT_THAT(get_refusal(make_frame_list({path("rgb.png"), path("orientation_6.jpg")})),
              AllOf(HasSubstr("orientation_6.jpg"), HasSubstr("make all frames of the video equal")));
  const auto damaged = put("9.png", read_contents(path("rgb.png")).substr(0, 60));
  EXPECT_THAT(get_refusal(make_frame_list({path("rgb.png"), damaged.string()})), HasSubstr("9.png"));
  EXPECT_THAT(get_refusal(make_frame_list({folder().string()})), HasSubstr("it is a folder"));
}

TEST_F(Video, ReadsTheSameFromMemory) {
  for (const char* name : {"indexed.mp4", "a.mov", "a.mkv", "a.ts", "a.mpg", "a.avi"}) {
    const auto file = write_clip(name, kLossy);
    io::MediaRef bytes;
    bytes.path = "video 1";
    bytes.bytes = std::make_shared<const std::string>(read_contents(file));
    VideoFile from_memory(bytes);
    VideoFile from_file(file);
    EXPECT_EQ(from_memory.info().num_frames, 30) << name;
    EXPECT_EQ(from_memory.info().fps, from_file.info().fps) << name;
    EXPECT_TRUE(at::equal(read(from_memory, {3, 4, 11, 29}), read(from_file, {3, 4, 11, 29}))) << name;
  }
  io::MediaRef bad;
  bad.path = "video 1";
  for (const std::string& content : {std::string(), std::string("no video"), std::string(5'000, '\xff')}) {
    bad.bytes = std::make_shared<const std::string>(content);
    EXPECT_THAT(get_refusal(bad), AllOf(HasSubstr("video 1: "), HasSubstr("cannot read the file as a video")));
  }
}

TEST_F(Video, ErrorsNameTheReason) {
  testing::internal::CaptureStderr();
  const std::string index_last = write_clip("index_last.mp4", kLossy);
  Clip index_first = kLossy;
  index_first.options = "movflags=faststart";
  const std::string content = read_contents(write_clip("index_first.mp4", index_first));
  EXPECT_THAT(get_refusal(folder() / "nowhere.mp4"), AllOf(HasSubstr("nowhere.mp4"), HasSubstr("data.image_root")));
  EXPECT_THAT(get_refusal(put("cut.mp4", read_contents(index_last).substr(0, 2000))),
              AllOf(HasSubstr("cut.mp4: cannot read the file as a video (moov atom not found)"), HasSubstr("replace")));
  EXPECT_THAT(get_refusal(put("cut.mp4", content.substr(0, content.size() / 2))),
              AllOf(HasSubstr("cut.mp4: the file is truncated"), HasSubstr("of 30 ends at")));
  EXPECT_THAT(get_refusal(put("empty.mp4", "")), HasSubstr("empty.mp4: cannot read the file as a video"));
  for (const char* name : {"text.mp4", "text.txt", "text.avi"}) {
    EXPECT_THAT(get_refusal(put(name, "A text is no video.\n")), HasSubstr("cannot read the file as a video")) << name;
  }
  EXPECT_THAT(get_refusal(put("list.mp4", "#EXTM3U\n#EXT-X-VERSION:3\n#EXTINF:9,\n/etc/hostname\n#EXT-X-ENDLIST\n")),
              HasSubstr("cannot read the file as a video"));
  { const VideoWriter without_packets(folder() / "none.avi", kLossy); }
  EXPECT_THAT(get_refusal(folder() / "none.avi"), HasSubstr("a video without frames"));
  VideoWriter(folder() / "huge.mov", {.codec = "qtrle", .format = AV_PIX_FMT_RGB24, .width = 16000, .height = 16000})
      .write_packet("sixteen bytes....", 0);
  EXPECT_THAT(get_refusal(folder() / "huge.mov"), AllOf(HasSubstr("16000 x 16000"), HasSubstr("limit")));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(Video, RejectsAudioOnlyFiles) {
  write_audio_only(folder() / "sound.mov");
  EXPECT_THAT(get_refusal(folder() / "sound.mov"), HasSubstr("sound.mov: has no video stream"));
}

TEST_F(Video, SurvivesTruncationAnywhere) {
  const std::string content = read_contents(write_clip("a.mkv", kLossy));
  for (size_t bytes = 0; bytes < content.size(); bytes += 97) {
    const auto file = put("cut.mkv", content.substr(0, bytes));
    try {
      VideoFile video(file);
      EXPECT_LE(video.info().num_frames, 30);
      read(video, list_preselected_frames(video));
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData);
      EXPECT_THAT(error.what(), HasSubstr("cut.mkv"));
    }
  }
}

TEST_F(Video, IsReadByManyThreads) {
  const auto file = write_clip("a.mp4", kLossy);
  VideoFile video(file);
  const at::Tensor whole = read(video, list_preselected_frames(video));
  std::vector<int> is_equal(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < is_equal.size(); ++i) {
    threads.emplace_back([&, i] {
      VideoFile thread_video(file);
      is_equal[i] = at::equal(read(thread_video, list_preselected_frames(thread_video)), whole) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(is_equal, Each(1));
}

TEST(VideoGoldens, FramesMatchPyAv) {
  const auto clips = read_test_json(kImageData / "videos.json");
  ASSERT_GE(clips.size(), 3);
  for (const auto& clip : clips) {
    const auto name = clip.at("file").get<std::string>();
    VideoFile video(kImageData / name);
    ASSERT_EQ(video.info().num_frames, clip.at("frames").size()) << name;
    EXPECT_DOUBLE_EQ(video.info().fps, clip.at("fps").get<double>()) << name;
    const at::Tensor frames = read(video, list_preselected_frames(video));
    for (int64_t i = 0; i < frames.size(0); ++i) {
      EXPECT_EQ(compute_crc32(frames[i]), clip.at("frames").at(i).get<std::string>()) << name << " frame " << i;
    }
  }
}

}  // namespace
}  // namespace vlmtrain::image
