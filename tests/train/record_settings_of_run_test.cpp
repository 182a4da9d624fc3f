#include "vlmtrain/train/record_settings_of_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "vlmtrain/base/error.h"

namespace vlmtrain::train {
namespace {

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

}  // namespace
}  // namespace vlmtrain::train
