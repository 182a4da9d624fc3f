#include "vlmtrain/data/held_out_again.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string>

#include "planner/user_error.h"

namespace vlmtrain::data {
namespace {

using planner::message_of;
using testing::AllOf;
using testing::HasSubstr;

constexpr uint64_t kSeed = 7;
constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

/// Names of records: their questions, and their ids where they have any.
using Names = std::vector<std::string>;

Names numbered(int64_t count) {
  Names names;
  for (int64_t i = 0; i < count; ++i) names.push_back(fmt::format("q{}", i));
  return names;
}

/// With `ids`, else named by file and place, as a record without id is.
io::RecordList records_of(const Names& names, bool ids = false) {
  std::vector<io::Record> records;
  for (const auto& name : names) {
    io::Record record;
    record.id = ids ? name : fmt::format("file:{}", records.size());
    record.turns = {{.role = io::Role::kUser, .text = ids ? "What is it?" : name},
                    {.role = io::Role::kAssistant, .text = "It is."}};
    records.push_back(std::move(record));
  }
  return io::RecordList(std::move(records));
}

HeldOutMemory memory_of(const Names& names, int64_t most = kAll, bool ids = false) {
  HeldOutMemory memory{.path = "d.json", .share = 0.25, .samples = std::ssize(names), .places = {}, .contents = {}};
  memory.places = hold_out(memory.samples, memory.share, kSeed).held_out;
  remember_contents(memory, records_of(names, ids), most, 1);
  return memory;
}

std::set<std::string> held_out(const HeldOut& split, const Names& names) {
  std::set<std::string> found;
  for (const int64_t place : split.held_out) found.insert(names[static_cast<size_t>(place)]);
  return found;
}

HeldOutAgain again(const HeldOutMemory& memory, const Names& names, bool ids = false) {
  return hold_out_again(memory, records_of(names, ids), kSeed, 2);
}

TEST(HeldOutAgain, IsTheSameWhereNothingHasChanged) {
  const Names names = numbered(40);
  for (const int64_t known : {kAll, int64_t{3}, int64_t{0}}) {
    const auto found = again(memory_of(names, known), names);
    EXPECT_EQ(found.split.held_out, hold_out(40, 0.25, kSeed).held_out);
    EXPECT_EQ(found.split.kept, hold_out(40, 0.25, kSeed).kept);
    EXPECT_EQ(found.change, "");
  }
}

TEST(HeldOutAgain, OfWhatWasAddedTheShareIsHeldOutToo) {
  const Names before = numbered(40), after = numbered(60);
  for (const int64_t known : {kAll, int64_t{3}}) {
    const auto found = again(memory_of(before, known), after);
    const auto old = held_out(hold_out(40, 0.25, kSeed), before), now = held_out(found.split, after);
    EXPECT_TRUE(std::ranges::includes(now, old));
    EXPECT_EQ(now.size(), 15U);
    EXPECT_EQ(std::ranges::count_if(found.split.held_out, [](int64_t place) { return place >= 40; }), 5);
    EXPECT_EQ(found.split.kept.size(), 45U);
    EXPECT_THAT(found.change, HasSubstr("20 samples were added: 5 of them"));
  }
  EXPECT_EQ(again(memory_of(before), numbered(41)).split.held_out.size(), 10U) << "a share that is no sample";
}

TEST(HeldOutAgain, IsFoundByContentInAnotherOrder) {
  const Names before = numbered(40);
  const auto wanted = held_out(hold_out(40, 0.25, kSeed), before);
  Names reversed(before.rbegin(), before.rend()), shifted = before, shorter(before.begin() + 5, before.end());
  std::ranges::rotate(shifted, shifted.begin() + 11);
  for (const bool ids : {false, true}) {
    for (const Names& after : {reversed, shifted}) {
      EXPECT_EQ(held_out(again(memory_of(before, kAll, ids), after, ids).split, after), wanted) << ids;
    }
  }
  // Removed samples are gone; none of those that were trained on takes their place.
  const auto left = again(memory_of(before), shorter);
  for (const auto& name : held_out(left.split, shorter)) EXPECT_TRUE(wanted.contains(name)) << name;
  EXPECT_EQ(left.split.kept.size() + left.split.held_out.size(), shorter.size());
  // New ones in between are trained on.
  Names mixed = before;
  mixed.insert(mixed.begin() + 3, {"new", "newer"});
  EXPECT_EQ(held_out(again(memory_of(before), mixed).split, mixed), wanted);
}

TEST(HeldOutAgain, IsRefusedWhereItCannotBeTold) {
  const Names before = numbered(40);
  Names reversed(before.rbegin(), before.rend());
  EXPECT_THAT(message_of([&] { again(memory_of(before, 3), reversed); }),
              AllOf(HasSubstr("data.check_at_start=false"), HasSubstr("name a file in data.eval")));
  Names doubled = reversed;
  doubled.insert(doubled.end(), reversed.begin(), reversed.end());
  EXPECT_THAT(message_of([&] { again(memory_of(before), doubled); }), HasSubstr("cannot be told apart"));
}

TEST(HeldOutAgain, AnotherDataSetIsDividedAnew) {
  Names others;
  for (int i = 0; i < 20; ++i) others.push_back(fmt::format("other {}", i));
  const auto found = again(memory_of(numbered(40)), others);
  EXPECT_EQ(found.split.held_out, hold_out(20, 0.25, kSeed).held_out);
  EXPECT_THAT(found.change, HasSubstr("none of the 10 samples"));
}

}  // namespace
}  // namespace vlmtrain::data
