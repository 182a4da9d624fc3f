#pragma once

#include "vlmtrain/engine/gradients/consensus.h"
