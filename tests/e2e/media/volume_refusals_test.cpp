#include <functional>

#include "e2e/brain_scans.h"

namespace vlmtrain::e2e {

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Matcher;

/// Invalid volumes and invalid settings for them: the run stops at its start, and names file,
/// sample and advice.
class VolumeRefusalsTest : public BrainScansTest {
 protected:
  /// Expects an error for this scan in the third sample.
  void expect_refused(const std::string& file, const std::vector<std::string>& settings,
                      const Matcher<std::string>& message) const {
    auto records = brains();
    records[2]["volume"] = {file};
    write_brains(records);
    const Result result = train(settings);
    EXPECT_EQ(result.exit_code, 4) << file << ": " << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("sub-0-T3"), HasSubstr(file), message));
  }
  void expect_record_refused(const std::function<void(nlohmann::json&)>& spoil,
                             const Matcher<std::string>& message) const {
    auto records = brains();
    spoil(records[1]);
    write_brains(records);
    const Result result = train({});
    EXPECT_EQ(result.exit_code, 4) << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("sub-0-T2"), message));
  }
  void expect_setting_refused(const std::vector<std::string>& settings, const Matcher<std::string>& message) const {
    const Result result = train(settings);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, message);
  }
};

TEST_F(VolumeRefusalsTest, RejectsUnreadableFiles) {
  write_scan("nan.nii", {.first_voxel = std::numeric_limits<double>::quiet_NaN()});
  expect_refused("nan.nii", {}, AllOf(HasSubstr("NaN"), HasSubstr("nan_to_num")));
  write_scan("flat.nii", {.is_flat = true});
  expect_refused("flat.nii", {}, HasSubstr("cannot normalize the scan"));
  write_scan("series.nii", {.size = {12, 12, 10, 4}});
  expect_refused("series.nii", {}, AllOf(HasSubstr("a series of 4 volumes"), HasSubstr("data.volume.series")));
  std::string lying = scan_bytes({});
  lying[42] = 100;  // dim[1] of the header, which is 14
  write_text(folder() / "scans/lying.nii", lying);
  expect_refused("lying.nii", {}, HasSubstr("100"));
  const std::string compressed_scan = gzip(scan_bytes({}));
  write_text(folder() / "scans/cut.nii.gz", compressed_scan.substr(0, compressed_scan.size() / 2));
  expect_refused("cut.nii.gz", {}, HasSubstr("truncated"));
  expect_refused("missing.nii", {}, HasSubstr("cannot open the scan"));
}

TEST_F(VolumeRefusalsTest, RejectsIncompleteRecords) {
  expect_record_refused(
      [](auto& record) {
        record["modality"] = {"T1w", "T2w", "FLAIR"};
      },
      HasSubstr("3 modalities for 2 volumes"));
  expect_record_refused(
      [](auto& record) {
        record["modality"] = {"T1w", "PET"};
      },
      AllOf(HasSubstr("PET"), HasSubstr("T1w, T2w")));
  auto config = nlohmann::json::parse(read_text(folder() / "model/config.json"));
  config["max_volumes"] = 2;
  write_text(folder() / "model/config.json", config.dump());
  expect_record_refused(
      [](auto& record) {
        record["volume"].push_back(record["volume"][0]);
        record.erase("modality");
        record["conversations"][0]["value"] = "<image><image><image>Where?";
      },
      AllOf(HasSubstr("3 volumes"), HasSubstr("supports at most 2"), HasSubstr("max_volumes")));
}

TEST_F(VolumeRefusalsTest, RejectsOtherFileTypes) {
  const std::string image_file = (folder() / "images" / entries(folder() / "images").front()).string();
  auto records = brains();
  records[0].erase("volume");
  records[0]["image"] = image_file;
  write_brains(records);
  const Result result = train({});
  EXPECT_EQ(result.exit_code, 4) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("sub-0-T1"), HasSubstr("supports only volumes"), HasSubstr("NIfTI")));
  std::filesystem::copy_file(image_file, folder() / "scans/picture.nii");
  expect_refused("picture.nii", {}, HasSubstr("NIfTI"));
  write_brains(brains());
  const Result images = train({"model.path=" + checkpoint().string()});
  EXPECT_EQ(images.exit_code, 4);
  EXPECT_THAT(images.err, AllOf(HasSubstr("sub-0-T1"), HasSubstr("data.volume.as=slices")));
}

TEST_F(VolumeRefusalsTest, RejectsUnsupportedSettings) {
  expect_setting_refused({"data.volume.size=50"}, AllOf(HasSubstr("data.volume.size"), HasSubstr("multiples of 16")));
  expect_setting_refused({"data.volume.size=16"}, AllOf(HasSubstr("data.volume.size"), HasSubstr("at least 48")));
  expect_setting_refused({"data.volume.normalization=window"}, HasSubstr("data.volume.window=[-160,240]"));
  expect_setting_refused({"data.volume.as=slices"}, AllOf(HasSubstr("data.volume.as"), HasSubstr("only volumes")));
  expect_setting_refused({"data.volume.series=median"}, AllOf(HasSubstr("mean"), HasSubstr("frames")));
}

TEST_F(VolumeRefusalsTest, LedgerCountsDroppedScans) {
  write_scan("nan.nii", {.first_voxel = std::numeric_limits<double>::infinity()});
  auto records = brains();
  records[2]["volume"] = {"nan.nii"};      // noticed when it is decoded
  records[5]["volume"] = {"missing.nii"};  // noticed at the start
  records[4]["modality"] = {"PET", "T1w"};
  write_brains(records);
  train_well({"data.on_bad_sample=skip", "training.max_steps=3"});
  const auto ledger = json_file("run/ledger.json");
  EXPECT_EQ(ledger["samples"], 18);
  EXPECT_EQ(ledger["dropped"], 3);
  EXPECT_EQ(ledger["used"].get<int64_t>() + ledger["dropped"].get<int64_t>() + ledger["not_reached"].get<int64_t>() +
                ledger["failed"].get<int64_t>(),
            18);
  EXPECT_EQ(ledger["problems"].size(), 3U);
}

}  // namespace

}  // namespace vlmtrain::e2e
