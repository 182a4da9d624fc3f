#pragma once

#include "vlmtrain/engine/generation/generate.h"
