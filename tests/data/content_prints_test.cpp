#include "vlmtrain/data/content_prints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vlmtrain::data {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(ContentPrints, FindsSamplesAndFilesOfAnotherDataSet) {
  ContentPrints trained{.contents = {50, 0, 30, 10}, .files = {{7, 0}, {3, 2}, {5, 3}}};
  const ContentPrints evaluated{.contents = {0, 10, 20, 50, 60},
                                .files = {{5, 1}, {3, 2}, {4, 2}, {3, 4}, {7, 4}, {9, 0}}};
  const SharedContent shared = shared_content(evaluated, trained);
  EXPECT_THAT(shared.samples, ElementsAre(1, 3)) << "0 is that of a sample which is not usable";
  EXPECT_THAT(shared.with_files, ElementsAre(2, 4)) << "each once, without those that are the same";
}

TEST(ContentPrints, NothingIsSharedWithNothing) {
  ContentPrints none;
  const SharedContent shared = shared_content({.contents = {1, 2}, .files = {{3, 0}}}, none);
  EXPECT_THAT(shared.samples, IsEmpty());
  EXPECT_THAT(shared.with_files, IsEmpty());
}

}  // namespace
}  // namespace vlmtrain::data
