#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/processing/preprocessor_config.h"
#include "parity/temporary_folder.h"
#include "parity/tiny_preset.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/models/synthetic_sample.h"

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

/// Tiny checkpoint whose files a test edits, and the files saved from it.
class PresetFiles {
 public:
  explicit PresetFiles(const std::string& preset) : preset_(preset) {
    if (!preset.starts_with("smolvlm")) return;
    edit("preprocessor_config.json", [](json& file) {  // the preset does not split images
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
  ProcessorFiles make_saved_files(const ProcessorSettings& settings, bool has_videos = false) const {
    return make_processor_files(folder(), settings, has_videos);
  }
  /// Saves the files as a run does.
  void save(const ProcessorSettings& settings, bool has_videos = false) const {
    for (const auto& [name, content] : make_saved_files(settings, has_videos).files)
      io::write_file(folder() / name, content);
  }
  data::SampleShape compute_image_shape(int64_t height, int64_t width, std::optional<int64_t> max_pixels = {}) const {
    SyntheticSample sample{.images = 1, .image_width = width, .image_height = height};
    sample.image_max_pixels = max_pixels;
    return compute_sample_shape(folder(), sample);
  }
  data::SampleShape compute_video_shape(int64_t frames, const ProcessorSettings& settings = {}) const {
    SyntheticSample sample{
        .images = 0, .video_frames = frames, .video_fps = 4, .video_width = 300, .video_height = 200};
    sample.image_max_pixels = settings.image_max_pixels;
    sample.sampling_fps = settings.video_fps;
    sample.video_max_frames = settings.video_max_frames;
    return compute_sample_shape(folder(), sample);
  }

 private:
  TinyPreset preset_;
};

constexpr image::ImageSize kSizes[]{{100, 100}, {300, 260}, {640, 640}, {90, 700}, {1200, 400}};

TEST(ProcessorFiles, AreEmptyWithoutLimits) {
  for (const auto& name : TinyPreset::names()) {
    const auto result = PresetFiles(name).make_saved_files({});
    EXPECT_THAT(result.files, IsEmpty()) << name;
    EXPECT_THAT(result.unsaved_settings, IsEmpty()) << name;
  }
}

/// The saved files, read without the run's limit, give the run's tokens.
TEST(ProcessorFiles, HaveMaxPixels) {
  const auto check_pixel_limit = [](const std::string& name, int64_t max_pixels) {
    PresetFiles files(name);
    ProcessorSettings settings;
    settings.image_max_pixels = max_pixels;
    std::vector<data::SampleShape> expected_shapes;
    int64_t num_smaller = 0;
    for (const auto size : kSizes) {
      expected_shapes.push_back(files.compute_image_shape(size.height, size.width, max_pixels));
      num_smaller +=
          expected_shapes.back().image_tokens < files.compute_image_shape(size.height, size.width).image_tokens ? 1 : 0;
    }
    EXPECT_GT(num_smaller, 0) << name;
    EXPECT_THAT(files.make_saved_files(settings).unsaved_settings, IsEmpty()) << name;
    files.save(settings);
    for (size_t i = 0; i < expected_shapes.size(); ++i) {
      EXPECT_EQ(files.compute_image_shape(kSizes[i].height, kSizes[i].width), expected_shapes[i]) << name << " " << i;
    }
    EXPECT_THAT(files.make_saved_files(settings).files, IsEmpty()) << name << ": saved once more, nothing changes";
  };
  check_pixel_limit("qwen2.5-vl-tiny", 12544);
  check_pixel_limit("qwen3-vl-tiny", 30000);
  const auto get_tile_height = [](const std::string& name) {
    return PresetFiles(name).compute_image_shape(100, 100).row.height;
  };
  const int64_t internvl_height = get_tile_height("internvl3-tiny"), smolvlm_height = get_tile_height("smolvlm-tiny");
  check_pixel_limit("internvl3-tiny", 3 * internvl_height * internvl_height);
  check_pixel_limit("smolvlm-tiny", smolvlm_height * smolvlm_height + 1);
}

TEST(ProcessorFiles, NameMaxPixelsThatTransformersLacks) {
  for (const char* name : {"smolvlm-tiny", "nanovlm-tiny"}) {
    PresetFiles files(name);
    const int64_t side = files.compute_image_shape(100, 100).row.height;
    ProcessorSettings settings;
    settings.image_max_pixels = 3 * side * side;
    const auto result = files.make_saved_files(settings);
    EXPECT_THAT(result.files, IsEmpty()) << name;
    EXPECT_THAT(result.unsaved_settings, ElementsAre(HasSubstr("data.image_max_pixels="))) << name;
    settings.image_max_pixels = int64_t{1} << 40;
    EXPECT_THAT(files.make_saved_files(settings).unsaved_settings, IsEmpty()) << name << ": it limits nothing";
  }
}

TEST(ProcessorFiles, HaveVideoSampling) {
  for (const char* name : {"qwen2.5-vl-tiny", "qwen3-vl-tiny", "smolvlm2-tiny", "internvl3-tiny"}) {
    PresetFiles files(name);
    ProcessorSettings settings;
    settings.video_fps = 0.5;
    settings.video_max_frames = 6;
    const auto result = files.make_saved_files(settings);
    ASSERT_THAT(result.files, Contains(Key("video_preprocessor_config.json"))) << name;
    const auto video = json::parse(result.files.at("video_preprocessor_config.json"));
    EXPECT_EQ(video.at("do_sample_frames"), true) << name;
    EXPECT_TRUE(video.contains("video_processor_type")) << name;
    const bool is_section = video.contains("video_sampling");
    EXPECT_EQ((is_section ? video["video_sampling"] : video).at("fps"), 0.5) << name;
    EXPECT_THAT(result.unsaved_settings, testing::SizeIs(std::string_view(name) == "internvl3-tiny" ? 1 : 0)) << name;
    const auto expected_shape = files.compute_video_shape(8, settings);
    files.save(settings);
    ProcessorSettings reloaded_settings;  // from the run's media_settings.json
    reloaded_settings.video_fps = 0.5;
    EXPECT_EQ(files.compute_video_shape(8, reloaded_settings), expected_shape) << name;
  }
}

TEST(ProcessorFiles, HaveDefaultSamplingWithVideos) {
  const PresetFiles files("qwen2.5-vl-tiny");
  const auto result = files.make_saved_files({}, /*has_videos=*/true);
  ASSERT_THAT(result.files, UnorderedElementsAre(Key("video_preprocessor_config.json")));
  const auto video = json::parse(result.files.at("video_preprocessor_config.json"));
  EXPECT_EQ(video.at("max_frames"), 16) << "the checkpoint's own, below data.video_max_frames";
  EXPECT_EQ(video.at("fps"), 2);
}

TEST(ProcessorFiles, LimitFramesOfAVideo) {
  PresetFiles files("qwen3-vl-tiny");
  const int64_t token_pixels = 32 * 32;
  ProcessorSettings settings;
  settings.image_max_pixels = 10 * token_pixels;
  const auto expected_shape = files.compute_video_shape(16, settings);
  ASSERT_LT(expected_shape.image_tokens, files.compute_video_shape(16).image_tokens);
  const auto result = files.make_saved_files(settings, /*has_videos=*/true);
  EXPECT_THAT(result.unsaved_settings, IsEmpty());
  files.save(settings, /*has_videos=*/true);
  EXPECT_EQ(files.compute_video_shape(16).image_tokens, expected_shape.image_tokens);
  settings.image_max_pixels = 10 * token_pixels + 1;
  EXPECT_THAT(files.make_saved_files(settings, /*has_videos=*/true).unsaved_settings,
              ElementsAre(HasSubstr("data.image_max_pixels=10241")));
}

/// A checkpoint to which transformers 5 has added its files while the older ones remain.
TEST(ProcessorFiles, HaveTheSameValuesInAllFiles) {
  PresetFiles files("qwen2.5-vl-tiny");
  json current_config = files.read("preprocessor_config.json");
  for (const char* key : {"min_pixels", "max_pixels"}) current_config.erase(key);
  current_config["size"] = {{"shortest_edge", 3136}, {"longest_edge", 25088}};
  files.write("processor_config.json", {{"image_processor", current_config}});
  ProcessorSettings settings;
  settings.image_max_pixels = 12544;
  files.save(settings);
  for (const auto& copy : find_settings_copies(files.folder(), MediaRole::kImages)) {
    const json& copy_settings = copy.settings;
    EXPECT_EQ(
        copy_settings.contains("max_pixels") ? copy_settings["max_pixels"] : copy_settings["size"]["longest_edge"],
        12544)
        << copy.name;
  }
}

TEST(ProcessorCopies, FollowSearchOrderOfTransformers) {
  const parity::TemporaryFolder folder;
  const auto write = [&](const char* file, const json& content) {
    io::write_file(folder.path() / file, content.dump());
  };
  const auto read_value = [&](auto find) {
    const auto actual = find(folder.path());
    return actual ? actual->template value<int64_t>("v", 0) : -1;
  };
  const auto read_image_value = [&] { return read_value(PreprocessorConfig::find_for_images); };
  const auto read_video_value = [&] { return read_value(PreprocessorConfig::find_for_videos); };
  EXPECT_EQ(read_image_value(), -1);
  EXPECT_EQ(read_video_value(), -1);
  write("preprocessor_config.json", {{"v", 1}});
  EXPECT_EQ(read_image_value(), 1);
  EXPECT_EQ(read_video_value(), 1) << "the image setting, if no other exists";
  write("processor_config.json", {{"image_processor", {{"v", 2}}}, {"video_processor", nullptr}});
  EXPECT_EQ(read_image_value(), 2) << "the newer key takes precedence";
  EXPECT_EQ(read_video_value(), 1) << "a null section counts as absent";
  write("video_preprocessor_config.json", {{"v", 3}});
  EXPECT_EQ(read_video_value(), 3);
  write("processor_config.json", {{"video_processor", {{"v", 4}}}, {"image_seq_length", 5}});
  EXPECT_EQ(read_video_value(), 4);
  EXPECT_EQ(read_image_value(), 1);
}

TEST(ProcessorCopies, AreComparedByValue) {
  const json config{
      {"image_mean", {0.5, 0.5, 0.5}}, {"size", {{"shortest_edge", 1}}}, {"image_processor_type", "AFast"}};
  EXPECT_THAT(find_differing_keys(config, {{"image_mean", {0.1, 0.5, 0.5}}, {"resample", 3}}),
              ElementsAre("image_mean"));
  EXPECT_THAT(find_differing_keys(config, {{"size", {{"min_pixels", 1}}}, {"image_processor_type", "A"}}), IsEmpty());
  EXPECT_THAT(find_differing_keys(config, {{"size", {{"shortest_edge", 2}}}}), ElementsAre("size"));
  EXPECT_THAT(find_differing_keys(config, config), IsEmpty());
}

/// Each family reads the newer files.
TEST(ProcessorCopies, OfTransformers5AreUsedByEachFamily) {
  const auto compute_changed_shape = [](const std::string& name, const char* key, const json& read_value) {
    PresetFiles files(name);
    json settings = files.read("preprocessor_config.json");
    settings[key] = read_value;
    files.write("processor_config.json", {{"image_processor", settings}});
    return files.compute_image_shape(300, 260);
  };
  const PresetFiles qwen_files("qwen2.5-vl-tiny");
  EXPECT_LT(compute_changed_shape("qwen2.5-vl-tiny", "max_pixels", 3136 * 4).image_tokens,
            qwen_files.compute_image_shape(300, 260).image_tokens);
  EXPECT_EQ(compute_changed_shape("internvl3-tiny", "max_patches", 1).pixel_rows, 1);
  EXPECT_EQ(compute_changed_shape("smolvlm-tiny", "do_image_splitting", false).pixel_rows, 1);
}

}  // namespace
}  // namespace vlmtrain::models
