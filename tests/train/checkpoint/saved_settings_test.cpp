#include "vlmtrain/train/saved_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/atomic.h"

namespace vlmtrain::train {

namespace {

using io::get_error_message;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

class SavedMediaSettingsTest : public io::TemporaryFolderTest {
 protected:
  static data::DataOptions make_non_default_options() {
    data::DataOptions options;
    options.image_max_pixels = 12544;
    options.video_fps = 0.5;
    options.video_layout = data::VideoTokenLayout::kTransformers5;
    return options;
  }
};

TEST_F(SavedMediaSettingsTest, WritesNonDefaultSettings) {
  EXPECT_EQ(format_media_settings({}), "");
  put(kMediaSettingsFile, format_media_settings(make_non_default_options()));
  EXPECT_THAT(load_media_settings(folder()), UnorderedElementsAre("data.image_max_pixels=12544", "data.video_fps=0.5",
                                                                  "data.video_layout=transformers5"));
}

TEST_F(SavedMediaSettingsTest, AppliesSavedSettingsUnlessOverridden) {
  put(kMediaSettingsFile, format_media_settings(make_non_default_options()));
  data::DataOptions options;
  options.video_fps = 4;
  EXPECT_THAT(apply_saved_media_settings(folder(), options),
              ElementsAre("data.image_max_pixels=12544", "data.video_layout=transformers5"));
  EXPECT_EQ(options.image_max_pixels, 12544);
  EXPECT_EQ(options.video_fps, 4);
  EXPECT_EQ(options.video_max_frames, 128);
  EXPECT_EQ(options.video_layout, data::VideoTokenLayout::kTransformers5);
}

TEST_F(SavedMediaSettingsTest, ExplicitDefaultsOverrideSavedSettings) {
  put(kMediaSettingsFile, format_media_settings(make_non_default_options()));
  data::DataOptions options;
  const auto parsed = parse_media_settings({"data.video_fps=2", "data.volume.spacing=1"}, options);
  EXPECT_THAT(parsed.media_keys, ElementsAre("data.video_fps"));
  EXPECT_THAT(parsed.other_settings, ElementsAre("data.volume.spacing=1"));
  apply_saved_media_settings(folder(), options, parsed.media_keys);
  EXPECT_EQ(options.video_fps, 2);
  EXPECT_EQ(options.image_max_pixels, 12544);
  EXPECT_THAT(get_error_message([&] { parse_media_settings({"data.video_fps=-1"}, options); }, ExitCode::kUsage),
              HasSubstr("data.video_fps"));
}

/// Checkpoints that are older than this file have the settings in the run's state.
TEST_F(SavedMediaSettingsTest, ReadsSettingsFromTheRunState) {
  std::filesystem::create_directories(folder() / "trainer_state");
  put("trainer_state/state.json",
      R"({"step": 1, "skipped_steps": 0, "cursor": {"lanes": [], "due": [], "batches": 0},
          "fingerprint": {"data.video_max_frames": "4", "data.mask_image_size": "auto", "data.max_length": "77"}})");
  data::DataOptions options;
  EXPECT_THAT(apply_saved_media_settings(folder(), options),
              ElementsAre("data.video_max_frames=4", "data.max_length=77"));
  EXPECT_EQ(options.video_max_frames, 4);
  EXPECT_EQ(options.max_length, 77);
}

TEST_F(SavedMediaSettingsTest, FolderWithoutARunHasNoSettings) {
  data::DataOptions options;
  EXPECT_THAT(apply_saved_media_settings(folder(), options), IsEmpty());
  put(kMediaSettingsFile, "[1]");
  EXPECT_THAT(get_error_message([&] { load_media_settings(folder()); }),
              AllOf(HasSubstr(kMediaSettingsFile), HasSubstr("not a JSON object")));
}

using testing::ElementsAre;
using testing::Pair;

TEST(SavedRecordSettingsTest, ExtractsRecordSettings) {
  std::vector<std::string> settings{"data.volume.size=64", "data.ignore_keys=[tools, weight]",
                                    "data.columns={image: img}", "data.columns.answer=label"};
  const auto extracted = extract_record_settings(settings);
  EXPECT_THAT(settings, ElementsAre("data.volume.size=64"));
  const io::RecordSettings loaded = load_record_settings("no-run", extracted);
  EXPECT_THAT(loaded.ignore_keys, ElementsAre("tools", "weight"));
  EXPECT_THAT(loaded.columns, ElementsAre(Pair("answer", "label"), Pair("image", "img")));
  EXPECT_FALSE(loaded.image_root);
}

TEST(SavedRecordSettingsTest, RefusesUnknownColumns) {
  EXPECT_THROW(load_record_settings("no-run", {"data.columns={picture: img}"}), UserError);
}

std::filesystem::path write_checkpoint(const std::filesystem::path& run, const std::string& fingerprint) {
  const auto state = run / "checkpoints" / "step-3" / "trainer_state";
  std::filesystem::create_directories(state);
  io::write_file(state / "state.json", R"({"step": 3, "epoch": 0, "position": 0, "fingerprint": )" + fingerprint + "}");
  return state.parent_path();
}

std::string resolve_date(const std::function<void(data::DataOptions&)>& resolve) {
  data::DataOptions options;
  resolve(options);
  return options.chat_template_date;
}

TEST(ChatTemplateDate, NewRunUsesCurrentDate) {
  const parity::TemporaryFolder folder;
  EXPECT_EQ(resolve_date([&](auto& data) { resolve_run_chat_template_date(data, folder.path()); }), get_current_date());
  EXPECT_EQ(resolve_date([&](auto& data) { resolve_run_chat_template_date(data, ""); }), get_current_date());
}

TEST(ChatTemplateDate, ResumedRunKeepsItsStartDate) {
  const parity::TemporaryFolder folder;
  const auto checkpoint = write_checkpoint(folder.path(), R"({"data.chat_template_date": "2025-02-03"})");
  EXPECT_EQ(resolve_date([&](auto& data) { resolve_run_chat_template_date(data, folder.path()); }), "2025-02-03");
  EXPECT_EQ(resolve_date([&](auto& data) { resolve_chat_template_date(data, checkpoint); }), "2025-02-03");
}

TEST(ChatTemplateDate, OldRunWithoutDateStaysAuto) {
  const parity::TemporaryFolder folder;
  write_checkpoint(folder.path(), "{}");
  EXPECT_EQ(resolve_date([&](auto& data) { resolve_run_chat_template_date(data, folder.path()); }), "auto");
}

TEST(ChatTemplateDate, ExplicitDateIsKept) {
  data::DataOptions options;
  options.chat_template_date = "2024-01-01";
  resolve_chat_template_date(options, std::nullopt);
  EXPECT_EQ(options.chat_template_date, "2024-01-01");
}

}  // namespace

}  // namespace vlmtrain::train
