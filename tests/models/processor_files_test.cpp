#include "vlmtrain/models/processor_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/processing/preprocessor_config.h"
#include "models/processing/processor_copies.h"
#include "parity/temporary_folder.h"
#include "parity/tiny_preset.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/models/hypothetical_sample.h"

namespace vlmtrain::models {
namespace {

using nlohmann::json;
using parity::TinyPreset;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Key;
using testing::UnorderedElementsAre;

/// A tiny checkpoint whose files are changed, and what is saved of it.
class SavedFiles {
 public:
  explicit SavedFiles(const std::string& preset) : preset_(preset) {
    if (!preset.starts_with("smolvlm")) return;
    edit("preprocessor_config.json", [](json& file) {  // the preset cuts no image
      file["do_image_splitting"] = true;
      file["size"] = {{"longest_edge", 4 * 64}};
    });
  }

  std::filesystem::path folder() const { return preset_.checkpoint(); }
  json read(const std::string& file) const { return io::read_json(folder() / file); }
  void write(const std::string& file, const json& content) const { io::write_file(folder() / file, content.dump()); }
  template <class Change>
  void edit(const std::string& file, const Change& change) const {
    json content = read(file);
    change(content);
    write(file, content);
  }
  ProcessorFiles saved(const ProcessorSettings& settings, bool has_videos = false) const {
    return processor_files_to_save(folder(), settings, has_videos);
  }
  /// As a run does it.
  void save(const ProcessorSettings& settings, bool has_videos = false) const {
    for (const auto& [name, content] : saved(settings, has_videos).files) io::write_file(folder() / name, content);
  }
  data::SampleShape image(int64_t height, int64_t width, std::optional<int64_t> max_pixels = {}) const {
    HypotheticalSample sample{.images = 1, .image_width = width, .image_height = height};
    sample.image_max_pixels = max_pixels;
    return shape_of(folder(), sample);
  }
  data::SampleShape video(int64_t frames, const ProcessorSettings& settings = {}) const {
    HypotheticalSample sample{
        .images = 0, .video_frames = frames, .video_fps = 4, .video_width = 300, .video_height = 200};
    sample.image_max_pixels = settings.image_max_pixels;
    sample.wanted_fps = settings.video_fps;
    sample.video_max_frames = settings.video_max_frames;
    return shape_of(folder(), sample);
  }

 private:
  TinyPreset preset_;
};

constexpr image::ImageSize kSizes[]{{100, 100}, {300, 260}, {640, 640}, {90, 700}, {1200, 400}};

TEST(ProcessorFiles, SayNothingWhereTheRunHasNoLimits) {
  for (const auto& name : TinyPreset::names()) {
    const auto saved = SavedFiles(name).saved({});
    EXPECT_THAT(saved.files, IsEmpty()) << name;
    EXPECT_THAT(saved.not_saved, IsEmpty()) << name;
  }
}

/// What is saved, read without the run's limit, gives the tokens of the run.
TEST(ProcessorFiles, CarryTheLimitOfPixels) {
  const auto check = [](const std::string& name, int64_t most) {
    SavedFiles files(name);
    ProcessorSettings settings;
    settings.image_max_pixels = most;
    std::vector<data::SampleShape> trained;
    int64_t smaller = 0;
    for (const auto size : kSizes) {
      trained.push_back(files.image(size.height, size.width, most));
      smaller += trained.back().image_tokens < files.image(size.height, size.width).image_tokens ? 1 : 0;
    }
    EXPECT_GT(smaller, 0) << name;
    EXPECT_THAT(files.saved(settings).not_saved, IsEmpty()) << name;
    files.save(settings);
    for (size_t i = 0; i < trained.size(); ++i) {
      EXPECT_EQ(files.image(kSizes[i].height, kSizes[i].width), trained[i]) << name << " " << i;
    }
    EXPECT_THAT(files.saved(settings).files, IsEmpty()) << name << ": saved once more, nothing changes";
  };
  check("qwen2.5-vl-tiny", 12544);
  check("qwen3-vl-tiny", 30000);
  const auto tile = [](const std::string& name) { return SavedFiles(name).image(100, 100).row.height; };
  const int64_t internvl = tile("internvl3-tiny"), smolvlm = tile("smolvlm-tiny");
  check("internvl3-tiny", 3 * internvl * internvl);
  check("smolvlm-tiny", smolvlm * smolvlm + 1);
}

TEST(ProcessorFiles, NameTheLimitOfPixelsThatTransformersDoesNotHave) {
  for (const char* name : {"smolvlm-tiny", "nanovlm-tiny"}) {
    SavedFiles files(name);
    const int64_t side = files.image(100, 100).row.height;
    ProcessorSettings settings;
    settings.image_max_pixels = 3 * side * side;
    const auto saved = files.saved(settings);
    EXPECT_THAT(saved.files, IsEmpty()) << name;
    EXPECT_THAT(saved.not_saved, ElementsAre(HasSubstr("data.image_max_pixels="))) << name;
    settings.image_max_pixels = int64_t{1} << 40;
    EXPECT_THAT(files.saved(settings).not_saved, IsEmpty()) << name << ": it limits nothing";
  }
}

TEST(ProcessorFiles, CarryTheSamplingOfVideos) {
  for (const char* name : {"qwen2.5-vl-tiny", "qwen3-vl-tiny", "smolvlm2-tiny", "internvl3-tiny"}) {
    SavedFiles files(name);
    ProcessorSettings settings;
    settings.video_fps = 0.5;
    settings.video_max_frames = 6;
    const auto saved = files.saved(settings);
    ASSERT_THAT(saved.files, Contains(Key("video_preprocessor_config.json"))) << name;
    const auto video = json::parse(saved.files.at("video_preprocessor_config.json"));
    EXPECT_EQ(video.at("do_sample_frames"), true) << name;
    EXPECT_TRUE(video.contains("video_processor_type")) << name;
    const bool is_section = video.contains("video_sampling");
    EXPECT_EQ((is_section ? video["video_sampling"] : video).at("fps"), 0.5) << name;
    EXPECT_THAT(saved.not_saved, testing::SizeIs(std::string_view(name) == "internvl3-tiny" ? 1 : 0)) << name;
    const auto trained = files.video(8, settings);
    files.save(settings);
    ProcessorSettings same_speed;  // what the run's media_settings.json gives
    same_speed.video_fps = 0.5;
    EXPECT_EQ(files.video(8, same_speed), trained) << name;
  }
}

TEST(ProcessorFiles, CarryTheUsualSamplingWhereTheRunHasVideos) {
  const SavedFiles files("qwen2.5-vl-tiny");
  const auto saved = files.saved({}, /*has_videos=*/true);
  ASSERT_THAT(saved.files, UnorderedElementsAre(Key("video_preprocessor_config.json")));
  const auto video = json::parse(saved.files.at("video_preprocessor_config.json"));
  EXPECT_EQ(video.at("max_frames"), 16) << "the checkpoint's own, below data.video_max_frames";
  EXPECT_EQ(video.at("fps"), 2);
}

TEST(ProcessorFiles, LimitEachFrameOfAVideo) {
  SavedFiles files("qwen3-vl-tiny");
  const int64_t square = 32 * 32;
  ProcessorSettings settings;
  settings.image_max_pixels = 10 * square;
  const auto trained = files.video(16, settings);
  ASSERT_LT(trained.image_tokens, files.video(16).image_tokens);
  const auto saved = files.saved(settings, /*has_videos=*/true);
  EXPECT_THAT(saved.not_saved, IsEmpty());
  files.save(settings, /*has_videos=*/true);
  EXPECT_EQ(files.video(16).image_tokens, trained.image_tokens);
  settings.image_max_pixels = 10 * square + 1;
  EXPECT_THAT(files.saved(settings, /*has_videos=*/true).not_saved,
              ElementsAre(HasSubstr("data.image_max_pixels=10241")));
}

/// A checkpoint that transformers 5 has written beside the older file.
TEST(ProcessorFiles, HaveTheSameValuesInAllPlaces) {
  SavedFiles files("qwen2.5-vl-tiny");
  json newer = files.read("preprocessor_config.json");
  for (const char* key : {"min_pixels", "max_pixels"}) newer.erase(key);
  newer["size"] = {{"shortest_edge", 3136}, {"longest_edge", 25088}};
  files.write("processor_config.json", {{"image_processor", newer}});
  ProcessorSettings settings;
  settings.image_max_pixels = 12544;
  files.save(settings);
  for (const auto& copy : find_copies(files.folder(), MediaRole::kImages)) {
    const json& own = copy.settings;
    EXPECT_EQ(own.contains("max_pixels") ? own["max_pixels"] : own["size"]["longest_edge"], 12544) << copy.name;
  }
}

TEST(ProcessorCopies, StandInTheOrderOfTransformers) {
  const parity::TemporaryFolder folder;
  const auto write = [&](const char* file, const json& content) {
    io::write_file(folder.path() / file, content.dump());
  };
  const auto value = [&](auto find) {
    const auto found = find(folder.path());
    return found ? found->template value<int64_t>("v", 0) : -1;
  };
  const auto images = [&] { return value(PreprocessorConfig::find_in); };
  const auto videos = [&] { return value(PreprocessorConfig::find_for_videos); };
  EXPECT_EQ(images(), -1);
  EXPECT_EQ(videos(), -1);
  write("preprocessor_config.json", {{"v", 1}});
  EXPECT_EQ(images(), 1);
  EXPECT_EQ(videos(), 1) << "of images, where there is no other";
  write("processor_config.json", {{"image_processor", {{"v", 2}}}, {"video_processor", nullptr}});
  EXPECT_EQ(images(), 2) << "the newer place counts";
  EXPECT_EQ(videos(), 1) << "a section that is null is none";
  write("video_preprocessor_config.json", {{"v", 3}});
  EXPECT_EQ(videos(), 3);
  write("processor_config.json", {{"video_processor", {{"v", 4}}}, {"image_seq_length", 5}});
  EXPECT_EQ(videos(), 4);
  EXPECT_EQ(images(), 1);
}

TEST(ProcessorCopies, DifferInValuesAndNotInSpelling) {
  const json one{{"image_mean", {0.5, 0.5, 0.5}}, {"size", {{"shortest_edge", 1}}}, {"image_processor_type", "AFast"}};
  EXPECT_THAT(differing_keys(one, {{"image_mean", {0.1, 0.5, 0.5}}, {"resample", 3}}), ElementsAre("image_mean"));
  EXPECT_THAT(differing_keys(one, {{"size", {{"min_pixels", 1}}}, {"image_processor_type", "A"}}), IsEmpty());
  EXPECT_THAT(differing_keys(one, {{"size", {{"shortest_edge", 2}}}}), ElementsAre("size"));
  EXPECT_THAT(differing_keys(one, one), IsEmpty());
}

/// A family's own reading of the newer place.
TEST(ProcessorCopies, OfTransformers5CountForEachFamily) {
  const auto newer = [](const std::string& name, const char* key, const json& value) {
    SavedFiles files(name);
    json settings = files.read("preprocessor_config.json");
    settings[key] = value;
    files.write("processor_config.json", {{"image_processor", settings}});
    return files.image(300, 260);
  };
  const SavedFiles qwen("qwen2.5-vl-tiny");
  EXPECT_LT(newer("qwen2.5-vl-tiny", "max_pixels", 3136 * 4).image_tokens, qwen.image(300, 260).image_tokens);
  EXPECT_EQ(newer("internvl3-tiny", "max_patches", 1).pixel_rows, 1);
  EXPECT_EQ(newer("smolvlm-tiny", "do_image_splitting", false).pixel_rows, 1);
}

}  // namespace
}  // namespace vlmtrain::models
