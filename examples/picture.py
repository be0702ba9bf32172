"""The picture of both examples: what networks have learnt about points of the plane. It needs matplotlib."""

import torch

COLOURS = ("#1f5fa8", "#c2452d")  # of the classes


def draw(file, panels, title):
    """Draw a panel for each of ``(heading, network, points, classes)``, three in a row, and say where it is."""
    try:
        import matplotlib
    except ImportError:
        print("The picture needs matplotlib: pip install matplotlib")
        return
    matplotlib.use("Agg")  # no window, so that it works everywhere
    from matplotlib import pyplot

    rows = -(-len(panels) // 3)
    figure, axes = pyplot.subplots(rows, 3, figsize=(8.4, 2.75 * rows + 0.8), layout="constrained", squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, panel in zip(axes.flat, panels, strict=False):
        draw_panel(axis, *panel)
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, title=title)
    for handle in legend.legend_handles:
        handle.set_sizes([14])
    legend.legend_handles[-1].set_facecolor("#bbbbbb")  # points of both classes can be misclassified
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
    print(f"Picture: {file}")


def draw_panel(axis, heading, net, x, y, extent=2.2, size=400):
    """The probability of class 1 as a shade, its boundary as a line, points on top."""
    from matplotlib.colors import LinearSegmentedColormap

    line = torch.linspace(-extent, extent, size)
    with torch.no_grad():
        shade = net(torch.cartesian_prod(line, line).flip(1)).sigmoid().view(size, size)
        wrong = (net(x)[:, 0] > 0) != (y > 0.5)
    colours = LinearSegmentedColormap.from_list("classes", ["#8db5de", "#f8f7f4", "#eeab99"])
    frame = (-extent, extent, -extent, extent)
    shade = shade.numpy()
    axis.imshow(shade, extent=frame, origin="lower", cmap=colours, vmin=0, vmax=1)
    if shade.min() < 0.5 < shade.max():
        axis.contour(line, line, shade, levels=[0.5], colors="#222222", linewidths=0.9)
    for label, colour in enumerate(COLOURS):
        axis.scatter(*x[(y == label) & ~wrong].T, s=3, color=colour, linewidths=0, label=f"class {label}")
    edge = {"edgecolors": "#111111", "linewidths": 0.5, "label": "misclassified"}
    axis.scatter(*x[wrong].T, s=8, color=[COLOURS[int(label)] for label in y[wrong]], **edge)
    axis.set_title(heading, fontsize=10)
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set(color="#aaaaaa", linewidth=0.6)
