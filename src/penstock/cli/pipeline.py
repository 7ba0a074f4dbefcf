"""`penstock pipeline`: make pipelines of Spark from templates, check them, run them and see how far they are."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.connection import DEFAULT_BOOTSTRAP_SERVER, AsJson, BootstrapServer, complete_topics
from penstock.cli.output import Failure, print_json, print_table, program
from penstock.cli.pipeline_run import run, validate
from penstock.cli.pipeline_status import list_projects, status
from penstock.pipeline.project import ProjectRefused
from penstock.pipeline.template import load_template, make_project, template_names

commands = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Pipelines on Spark: topics in, tables and topics out."
)


def _complete_templates(incomplete: str) -> list[str]:
    return [name for name in template_names() if name.startswith(incomplete)]


@commands.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="PROJECT", help="Folder to make; its name is the pipeline's.")],
    template: Annotated[
        str,
        typer.Option("--template", "-t", metavar="NAME", help="What it shall do.", autocompletion=_complete_templates),
    ],
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Same as --set topic=TOPIC.", autocompletion=complete_topics)
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the template; repeat for more."),
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP_SERVER,
    json: AsJson = False,
) -> None:
    """Make a pipeline from a template: a project of Spark Declarative Pipelines.

    What the templates do, and their parameters: penstock pipeline templates

    \b
    Examples:
      penstock pipeline init clean-orders --template dedupe --topic orders
      penstock pipeline init clean-orders -t dedupe --topic orders --set window='1 hour'
    """
    given = _parameters(set_)
    if topic is not None:
        given["topic"] = topic
    try:
        make_project(folder, load_template(template), given, bootstrap_server)
    except ProjectRefused as refused:
        raise Failure(str(refused), hint=refused.hint, code="USAGE") from refused
    if json:
        print_json({"project": str(folder.resolve()), "template": template})
        return
    print(f"Made {folder}. Its parameters are in {folder / 'spark-pipeline.yml'}. Run it with:")
    print(f"  {program()} pipeline run {folder}")


commands.command()(validate)
commands.command()(run)
commands.command("list")(list_projects)
commands.command()(status)


@commands.command()
def templates(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Only this one.", autocompletion=_complete_templates)
    ] = None,
    json: AsJson = False,
) -> None:
    """Show the templates and their parameters.

    \b
    Examples:
      penstock pipeline templates
      penstock pipeline templates dedupe
    """
    try:
        shown = [load_template(each) for each in ([name] if name else template_names())]
    except ProjectRefused as refused:
        raise Failure(str(refused), hint=refused.hint, code="USAGE") from refused
    if json:
        print_json(
            [
                {
                    "name": each.name,
                    "summary": each.summary,
                    "parameters": [
                        {"name": parameter.name, "help": parameter.help, "default": parameter.default}
                        for parameter in each.parameters
                    ],
                }
                for each in shown
            ]
        )
    elif name is None:
        print_table(["TEMPLATE", "WHAT IT DOES"], [(each.name, each.summary) for each in shown])
    else:
        (template,) = shown
        print(f"{template.name}: {template.summary}\n")
        print_table(
            ["PARAMETER", "DEFAULT", "WHAT IT IS"],
            [(each.name, each.default, each.help) for each in template.parameters],
        )


def _parameters(options: list[str] | None) -> dict[str, str]:
    found = {}
    for option in options or ():
        key, equals, value = option.partition("=")
        if not key or not equals:
            raise Failure(
                f"--set {option} has no value.", hint="Give KEY=VALUE, for example --set window='1 hour'.", code="USAGE"
            )
        found[key.strip()] = value
    return found
