"""Loss curves as an SVG picture."""

WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 30, 34
# vlmtrain's line is wide and light, the peer's lies on it, thin and dark: both show where they are equal.
STYLES = (("vlmtrain", "#7fb2e5", 5), ("transformers", "#b3261e", 1.2))
GRID = 5


def panel(title, curves, top, styles):
    """`curves`: one list of losses for each of `styles`."""
    longest, largest = max(map(len, curves)), max(max(curve) for curve in curves)
    limit = max(1, -(-largest // 1))

    def x(step):
        return LEFT + (WIDTH - LEFT - RIGHT) * (step - 1) / max(1, longest - 1)

    def y(loss):
        return top + HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * loss / limit

    parts = [f'<text x="{LEFT}" y="{top + 16}" class="title">{title}</text>']
    for index in range(GRID + 1):
        loss, step = limit * index / GRID, max(1, round(longest * index / GRID))
        parts.append(f'<path d="M{LEFT} {y(loss):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:.1f}</text>')
        parts.append(f'<text x="{x(step):.1f}" y="{top + HEIGHT - 14}" text-anchor="middle">{step}</text>')
    for (_, color, width), curve in zip(styles, curves, strict=True):
        points = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in enumerate(curve, start=1))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{width}" stroke-linejoin="round"/>')
    return parts


def svg(panels, styles=STYLES):
    """`panels`: title → curves, one for each of `styles` (name, color, width); panels are one below the other."""
    height = HEIGHT * len(panels) + 20
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11" fill="#333">',
             "<style>.title{font-size:14px;font-weight:bold}</style>", f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>']
    for index, (title, curves) in enumerate(panels.items()):
        parts += panel(title, curves, index * HEIGHT, styles)
    for index, (name, color, width) in enumerate(styles):
        left = LEFT + 150 * index
        parts.append(f'<path d="M{left} {height - 12}h30" stroke="{color}" stroke-width="{width}"/>')
        parts.append(f'<text x="{left + 36}" y="{height - 8}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
