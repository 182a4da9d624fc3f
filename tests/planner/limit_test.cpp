#include "vlmtrain/planner/limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "planner/rehearsal.h"
#include "planner/user_error.h"

namespace vlmtrain::planner {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(CardByNameTest, IsThatOfTheTable) {
  for (const auto& gpu : memory::gpus()) {
    const TargetCard card = card_by_name(std::string(gpu.name));
    EXPECT_EQ(card.gpu, &gpu);
    EXPECT_EQ(card.memory_bytes, gpu.memory_bytes);
    EXPECT_EQ(card.context_bytes, gpu.context_bytes);
    EXPECT_THAT(card.description, HasSubstr(std::string(gpu.device_name)));
  }
}

TEST(CardByNameTest, IsWrittenAsPeopleAndDriversDo) {
  const std::pair<const char*, const char*> kNames[] = {{"4090", "rtx4090"},
                                                        {"RTX 4090", "rtx4090"},
                                                        {"NVIDIA GeForce RTX 4090", "rtx4090"},
                                                        {"H100", "h100"},
                                                        {"rtx-5090", "rtx5090"},
                                                        {"NVIDIA H100 80GB HBM3", "h100"},
                                                        {"h100 80gb", "h100"},
                                                        {"A100-SXM4-40GB", "a100-40"},
                                                        {"a100_80", "a100-80"},
                                                        {"Tesla T4", "t4"},
                                                        {"RTX A6000", "a6000"},
                                                        {"L40S", "l40s"},
                                                        {"3060", "rtx3060"},
                                                        {"RTX 4080", "rtx4080"},
                                                        {"RTX 4080 SUPER", "rtx4080-super"},
                                                        {"4070ti", "rtx4070ti"},
                                                        {"RTX 3060 12GB", "rtx3060"},
                                                        {"4090 24 GB", "rtx4090"},
                                                        {"4090 laptop", "rtx4090-laptop"},
                                                        {"RTX 3080 Mobile", "rtx3080-laptop"},
                                                        {"NVIDIA GeForce RTX 4060 Laptop GPU", "rtx4060-laptop"},
                                                        {"RTX 6000 Ada", "rtx6000-ada"},
                                                        {"RTX PRO 6000", "rtx-pro-6000"},
                                                        {"A10G", "a10g"},
                                                        {"a100 40gb", "a100-40"}};
  for (const auto& [written, name] : kNames) EXPECT_EQ(card_by_name(written).gpu->name, name) << written;
  EXPECT_EQ(card_by_name("RTX 4060 Ti 8GB").gpu->name, "rtx4060ti-8");
  EXPECT_EQ(card_by_name("4060ti 16").gpu->name, "rtx4060ti-16");
  EXPECT_THAT(message_of([] { card_by_name("4060 Ti"); }), HasSubstr("there are several: rtx4060ti-16, rtx4060ti-8;"));
  EXPECT_THAT(message_of([] { card_by_name("a100"); }), HasSubstr("there are several: a100-40, a100-80;"));
  EXPECT_THAT(message_of([] { card_by_name("rtx"); }), HasSubstr("there are several: "));
  for (const char* name : {"RTX 4085", "NVIDIA", "-", "3060 8GB", "4090 48GB", "24GB"}) {
    EXPECT_THAT(message_of([&] { card_by_name(name); }), HasSubstr("unknown")) << name;
  }
}

TEST(CardByNameTest, AnUnknownNameIsAnErrorWithTheNearest) {
  EXPECT_THAT(message_of([] { card_by_name("rtx409"); }), AllOf(HasSubstr("rtx409"), HasSubstr("did you mean rtx4090?"),
                                                                HasSubstr("a100-40"), HasSubstr("--gpu-gb")));
  EXPECT_THAT(message_of([] { card_by_name("something quite different"); }),
              AllOf(HasSubstr("unknown"), Not(HasSubstr("did you mean"))));
  EXPECT_THAT(message_of([] { card_by_name(""); }), HasSubstr("known ones"));
}

TEST(CardOfSizeTest, IsWhatDriversReportOfSuchASize) {
  for (const double size : {1.0, 8.0, 12.0, 24.0, 47.5, 80.0, 1024.0}) {
    const TargetCard card = card_of_size(size);
    EXPECT_EQ(card.memory_bytes % (2 << 20), 0) << "drivers hand out pages of 2 MiB";
    EXPECT_LE(static_cast<double>(card.memory_bytes), 0.98 * size * kGiB);
    EXPECT_GT(static_cast<double>(card.memory_bytes), 0.98 * size * kGiB - 2 * (1 << 20));
  }
}

/// So a plan for a size holds on the cards of that size, but for those with check bits in their own memory. The margin
/// of every mode is many times what an RTX 5090 has less.
TEST(CardOfSizeTest, IsHardlyLargerThanAnyCardOfThatSize) {
  for (const auto& [size, name] : {std::pair{24.0, "rtx4090"},
                                   {24.0, "rtx3090"},
                                   {32.0, "rtx5090"},
                                   {40.0, "a100-40"},
                                   {48.0, "a6000"},
                                   {80.0, "a100-80"},
                                   {80.0, "h100"}}) {
    const auto real = card_by_name(name).memory_bytes;
    const auto assumed = card_of_size(size).memory_bytes;
    EXPECT_LE(static_cast<double>(assumed), 1.0005 * static_cast<double>(real)) << name;
    EXPECT_GE(static_cast<double>(assumed), 0.98 * static_cast<double>(real)) << name;
  }
}

TEST(CardOfSizeTest, LargerSizesAreLargerCards) {
  int64_t before = 0;
  for (double size = 1; size <= 1024; size += 0.5) {
    const TargetCard card = card_of_size(size);
    EXPECT_GT(card.memory_bytes, before);
    EXPECT_NE(card.gpu, nullptr);
    before = card.memory_bytes;
  }
  EXPECT_EQ(card_of_size(24).gpu->name, "rtx4090");
  EXPECT_EQ(card_of_size(24.1).gpu->name, "rtx5090");
  EXPECT_EQ(card_of_size(80).gpu->name, "h100");
}

TEST(CardOfSizeTest, NoCardHasSuchASize) {
  for (const double size : {0.0, -3.0, 0.99, 1024.1, 1e9, std::nan(""), std::numeric_limits<double>::infinity(),
                            -std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(message_of([&] { card_of_size(size); }), AllOf(HasSubstr("gpu-gb"), HasSubstr("1 to 1024"))) << size;
  }
}

TEST(CardOfDeviceTest, AKnownNameIsThatOfTheTable) {
  const memory::Gpu& h100 = *memory::find_gpu("h100");
  const int64_t taken = 700'000'000, loaded_later = int64_t{208} << 20;
  const TargetCard card = card_of_device({.name = std::string(h100.device_name),
                                          .architecture = 90,
                                          .multiprocessors = 132,
                                          .total_bytes = 85'000'000'000,
                                          .free_bytes = 85'000'000'000 - taken});
  EXPECT_EQ(card.gpu, &h100);
  EXPECT_EQ(card.memory_bytes, 85'000'000'000) << "as its driver says, not as the table says";
  EXPECT_EQ(card.context_bytes, taken + loaded_later);
  EXPECT_EQ(card.others_bytes, 0);
  EXPECT_TRUE(card.context_measured);
  EXPECT_THAT(card.description, AllOf(HasSubstr("85.00 GB"), Not(HasSubstr("planned as"))));
}

TEST(CardOfDeviceTest, AContextThatIsStillSmallIsTakenToGrow) {
  const memory::Gpu& h100 = *memory::find_gpu("h100");
  const TargetCard card = card_of_device({.name = std::string(h100.device_name),
                                          .architecture = 90,
                                          .multiprocessors = 132,
                                          .total_bytes = 85'000'000'000,
                                          .free_bytes = 84'900'000'000});
  EXPECT_EQ(card.context_bytes, h100.context_bytes);
  EXPECT_FALSE(card.context_measured);
}

TEST(CardOfDeviceTest, WhatNoContextTakesOthersHold) {
  const memory::Gpu& h100 = *memory::find_gpu("h100");
  const TargetCard card = card_of_device({.name = std::string(h100.device_name),
                                          .architecture = 90,
                                          .multiprocessors = 132,
                                          .total_bytes = 85'000'000'000,
                                          .free_bytes = 55'000'000'000});
  EXPECT_EQ(card.context_bytes, h100.context_bytes);
  EXPECT_FALSE(card.context_measured);
  EXPECT_EQ(card.context_bytes + card.others_bytes, 30'000'000'000);
}

TEST(CardOfDeviceTest, AnUnknownNameIsPlannedAsTheCardMostLikeIt) {
  const auto planned_as = [](int architecture, int multiprocessors) {
    const TargetCard card = card_of_device({.name = "NVIDIA Something",
                                            .architecture = architecture,
                                            .multiprocessors = multiprocessors,
                                            .total_bytes = 20'000'000'000,
                                            .free_bytes = 19'000'000'000});
    EXPECT_THAT(card.description, AllOf(HasSubstr("NVIDIA Something"), HasSubstr("planned as"),
                                        HasSubstr(std::string(card.gpu->device_name))));
    EXPECT_EQ(card.memory_bytes, 20'000'000'000);
    return card.gpu;
  };
  EXPECT_EQ(planned_as(89, 64)->name, "rtx4070ti-super");
  EXPECT_EQ(planned_as(89, 130)->name, "rtx4090");
  EXPECT_EQ(planned_as(90, 132)->architecture, 90);
  EXPECT_EQ(planned_as(103, 148)->architecture, 100) << "the next older: it runs its kernels";
  EXPECT_EQ(planned_as(121, 48)->architecture, 120);
  EXPECT_THAT(message_of([&] { planned_as(130, 200); }, ExitCode::kFailed),
              HasSubstr("no code for compute capability 13.0"));
  EXPECT_THAT(message_of([&] { planned_as(70, 80); }, ExitCode::kFailed),
              HasSubstr("no code for compute capability 7.0"));
}

TEST(CardByNameTest, ACardWithoutCodeIsRefusedWithTheReason) {
  for (const char* name : {"v100", "v100-32", "p100", "gtx1080ti"}) {
    EXPECT_THAT(message_of([&] { card_by_name(name); }),
                AllOf(HasSubstr(name), HasSubstr("no code"), HasSubstr("7.5"), HasSubstr("--gpu t4")));
  }
}

TEST(CardByNameTest, KnowsPartsOfCards) {
  const TargetCard part = card_by_name("h100-mig-3g.40gb");
  EXPECT_EQ(part.memory_bytes, int64_t{40'448} << 20);
  EXPECT_EQ(part.gpu->multiprocessors, 60);
  EXPECT_EQ(part.gpu->architecture, 90);
  EXPECT_THAT(part.description, HasSubstr("MIG 3g.40gb"));
  EXPECT_THAT(message_of([] { card_by_name("h100-mig-3g.4gb"); }),
              AllOf(HasSubstr("did you mean h100-mig-3g.40gb?"), HasSubstr("a100-80-mig-1g.10gb")));
}

TEST(CardOfDeviceTest, APartOfACardIsThatPart) {
  const TargetCard known = card_of_device({.name = "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
                                           .architecture = 90,
                                           .multiprocessors = 60,
                                           .total_bytes = 42'300'000'000,
                                           .free_bytes = 41'900'000'000});
  EXPECT_EQ(known.gpu->name, "h100-mig-3g.40gb");
  EXPECT_EQ(known.memory_bytes, 42'300'000'000);
  EXPECT_EQ(known.multiprocessors, 60);
  EXPECT_THAT(known.description, Not(HasSubstr("planned as")));
  const TargetCard unknown = card_of_device({.name = "NVIDIA A100-SXM4-80GB MIG 2c.3g.40gb",
                                             .architecture = 80,
                                             .multiprocessors = 28,
                                             .total_bytes = 42'300'000'000,
                                             .free_bytes = 41'900'000'000});
  EXPECT_EQ(unknown.gpu->name, "a100-80") << "the card that it is a part of";
  EXPECT_EQ(unknown.multiprocessors, 28);
  EXPECT_THAT(unknown.description, HasSubstr("with 28 multiprocessors"));
}

TEST(MarginTest, IsMoreTheMoreConservative) {
  EXPECT_EQ(margin_percent(Mode::kConservative), 10);
  EXPECT_EQ(margin_percent(Mode::kBalanced), 5);
  EXPECT_EQ(margin_percent(Mode::kAggressive), 2);
}

TEST(LimitTest, IsTheCardWithoutContextAndMargin) {
  const TargetCard card = card_by_name("rtx4090");
  for (const auto& [name, mode] : modes()) {
    const MemoryLimit limit = limit_of(card, mode, std::nullopt, 1);
    EXPECT_EQ(limit.card_bytes, card.memory_bytes);
    EXPECT_EQ(limit.context_bytes, card.context_bytes);
    EXPECT_EQ(limit.communication_bytes, 0) << "one card does not communicate";
    EXPECT_EQ(limit.margin_percent, margin_percent(mode));
    EXPECT_EQ(limit.margin_bytes, std::llround(static_cast<double>(card.memory_bytes) * limit.margin_percent / 100.0));
    EXPECT_EQ(limit.limit_bytes, card.memory_bytes - limit.context_bytes - limit.margin_bytes) << name;
  }
}

TEST(LimitTest, ALimitMakesTheCardSmallerAndNeverLarger) {
  const TargetCard card = card_by_name("rtx4090");
  const MemoryLimit limit = limit_of(card, Mode::kBalanced, 10.0, 1);
  EXPECT_EQ(limit.card_bytes, 10'000'000'000);
  EXPECT_EQ(limit.margin_bytes, 500'000'000) << "of what may be taken";
  EXPECT_EQ(limit.limit_bytes, 9'500'000'000 - card.context_bytes);
  EXPECT_EQ(limit_of(card, Mode::kBalanced, 1000.0, 1).limit_bytes,
            limit_of(card, Mode::kBalanced, std::nullopt, 1).limit_bytes);
}

/// A limit is what this process may take. What others hold of a large card is none of its business until too little is
/// left.
TEST(LimitTest, OthersTakeFromTheCardAndNotFromOnesOwnLimit) {
  TargetCard card = card_by_name("h100");
  const MemoryLimit alone = limit_of(card, Mode::kBalanced, 20.0, 1);
  card.others_bytes = 40'000'000'000;
  const MemoryLimit beside = limit_of(card, Mode::kBalanced, 20.0, 1);
  EXPECT_EQ(beside.limit_bytes, alone.limit_bytes);
  EXPECT_EQ(beside.card_bytes, 20'000'000'000);
  EXPECT_EQ(limit_of(card, Mode::kBalanced, std::nullopt, 1).card_bytes, card.memory_bytes - card.others_bytes);

  card.others_bytes = card.memory_bytes - 10'000'000'000;
  const MemoryLimit crowded = limit_of(card, Mode::kBalanced, 20.0, 1);
  EXPECT_EQ(crowded.card_bytes, 10'000'000'000) << "all that is there";
  EXPECT_EQ(crowded.margin_bytes, 500'000'000);
  EXPECT_EQ(crowded.limit_bytes, 9'500'000'000 - card.context_bytes);
}

TEST(LimitTest, IsNeverNegative) {
  TargetCard full = card_by_name("rtx4090");
  full.others_bytes = full.memory_bytes + 1;
  EXPECT_EQ(limit_of(full, Mode::kBalanced, std::nullopt, 1).limit_bytes, 0);
  EXPECT_EQ(limit_of(card_by_name("rtx4090"), Mode::kBalanced, 0.001, 8).limit_bytes, 0);
}

TEST(LimitTest, SeveralRanksNeedBuffersToCommunicate) {
  const TargetCard card = card_by_name("a100-80");
  const MemoryLimit alone = limit_of(card, Mode::kBalanced, std::nullopt, 1);
  const MemoryLimit two = limit_of(card, Mode::kBalanced, std::nullopt, 2);
  EXPECT_GT(two.communication_bytes, 100'000'000);
  EXPECT_LT(two.communication_bytes, 1'000'000'000);
  EXPECT_EQ(two.limit_bytes, alone.limit_bytes - two.communication_bytes);
  EXPECT_EQ(limit_of(card, Mode::kBalanced, std::nullopt, 8).communication_bytes, two.communication_bytes)
      << "a ring has two neighbours, however long it is";
}

TEST(PrecisionTest, OnlyCardsWithBf16UnitsComputeInIt) {
  for (const auto& gpu : memory::gpus()) {
    EXPECT_TRUE(computes_in(gpu, engine::Precision::kFp32));
    EXPECT_EQ(computes_in(gpu, engine::Precision::kBf16), gpu.architecture >= 80) << gpu.name;
  }
}

TEST(RecomputeOptionTest, CountsBlocksOfATower) {
  EXPECT_TRUE(RecomputeOption{}.is_auto());
  const models::RecomputeBlocks all{.vision = 12, .language = 30};
  EXPECT_EQ(RecomputeOption{"none"}.blocks_of(all), models::RecomputeBlocks{});
  EXPECT_EQ(RecomputeOption{"all"}.blocks_of(all), all);
  EXPECT_EQ(RecomputeOption{"5"}.blocks_of(all), (models::RecomputeBlocks{5, 5}));
  EXPECT_EQ(RecomputeOption{"20"}.blocks_of(all), (models::RecomputeBlocks{12, 20})) << "a tower has no more";
  EXPECT_EQ(RecomputeOption{"3+40"}.blocks_of(all), (models::RecomputeBlocks{3, 30}));
  EXPECT_THROW(RecomputeOption{"auto"}.blocks_of(all), InternalError);
}

}  // namespace
}  // namespace vlmtrain::planner
