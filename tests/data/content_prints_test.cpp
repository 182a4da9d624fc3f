#include "vlmtrain/data/index/sample_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vlmtrain::data {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(ContentFingerprints, FindsSharedSamplesAndFiles) {
  ContentFingerprints train_fingerprints{.content_hashes = {50, 0, 30, 10}, .file_hashes = {{7, 0}, {3, 2}, {5, 3}}};
  const ContentFingerprints eval_fingerprints{.content_hashes = {0, 10, 20, 50, 60},
                                              .file_hashes = {{5, 1}, {3, 2}, {4, 2}, {3, 4}, {7, 4}, {9, 0}}};
  const SharedContent shared = find_shared_content(eval_fingerprints, train_fingerprints);
  EXPECT_THAT(shared.samples, ElementsAre(1, 3)) << "0 is that of a sample which is not usable";
  EXPECT_THAT(shared.samples_with_shared_files, ElementsAre(2, 4)) << "each once, without those that are the same";
}

TEST(ContentFingerprints, SharesNothingWithAnEmptyDataSet) {
  ContentFingerprints empty;
  const SharedContent shared = find_shared_content({.content_hashes = {1, 2}, .file_hashes = {{3, 0}}}, empty);
  EXPECT_THAT(shared.samples, IsEmpty());
  EXPECT_THAT(shared.samples_with_shared_files, IsEmpty());
}

}  // namespace
}  // namespace vlmtrain::data
