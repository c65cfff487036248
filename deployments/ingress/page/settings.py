"""The page's configuration."""

from __future__ import annotations

from pydantic import Field

from deployments.contract.settings import Schema


class PageConfig(Schema):
    """The page at `/`."""

    enabled: bool = Field(True, description="whether there is a page at /, and /stats that it draws")
    jaeger_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s\"'<>]+$",
        max_length=200,
        description="where Jaeger's own page is, as a browser reaches it; a trace's id is a link then",
    )


WITH_PAGE, WITHOUT_PAGE = PageConfig(), PageConfig(enabled=False)
