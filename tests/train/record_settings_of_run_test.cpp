#include "vlmtrain/train/record_settings_of_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "vlmtrain/base/error.h"

namespace vlmtrain::train {
namespace {

using testing::ElementsAre;
using testing::Pair;

TEST(RecordSettingsOfRun, TakesTheSettingsOfRecords) {
  std::vector<std::string> settings{"data.volume.size=64", "data.ignore_keys=[tools, weight]",
                                    "data.columns={image: img}", "data.columns.answer=label"};
  const auto taken = take_record_settings(settings);
  EXPECT_THAT(settings, ElementsAre("data.volume.size=64"));
  const io::RecordSettings read = record_settings_of_run("no-run", taken);
  EXPECT_THAT(read.ignore_keys, ElementsAre("tools", "weight"));
  EXPECT_THAT(read.columns, ElementsAre(Pair("answer", "label"), Pair("image", "img")));
  EXPECT_FALSE(read.image_root);
}

TEST(RecordSettingsOfRun, RefusesUnknownColumns) {
  EXPECT_THROW(record_settings_of_run("no-run", {"data.columns={picture: img}"}), UserError);
}

}  // namespace
}  // namespace vlmtrain::train
